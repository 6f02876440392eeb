"""A store's file: its tables and versions, how it is opened, the meaning of SQLite's errors."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from evotune.errors import StoreError
from evotune.store._checksums import FIRST, ROW, SMALL_TABLES, keep_table_sum, keep_tail, row_sum
from evotune.trial import Json

# --- The tables of a run's store, and the steps that bring an older store to the newest version ---

encode_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes one each time
WRONG_SHAPE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors from reading JSON that is cut, nested too deeply, or of another shape than was written."""
APPLICATION_ID = 0x45564F54  # "EVOT"


def _version_1(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT")
    connection.execute(
        "CREATE TABLE outcomes (number INTEGER PRIMARY KEY, configuration TEXT NOT NULL,"
        " outcome TEXT NOT NULL, finished_s REAL NOT NULL) STRICT"
    )
    connection.execute(
        "CREATE TABLE confirmations (number INTEGER PRIMARY KEY, outcome TEXT NOT NULL,"
        " finished_s REAL NOT NULL) STRICT"
    )
    connection.execute(
        "CREATE TABLE snapshots (told INTEGER PRIMARY KEY, state TEXT NOT NULL) STRICT"
    )


def _version_2(connection: sqlite3.Connection) -> None:
    """Adds the columns that `top`, `status` and `resume` search, so that they need not read all
    JSON."""
    for column in (
        *("kind TEXT NOT NULL DEFAULT ''", "fitness REAL", "duplicate_of INTEGER"),
        *("binary TEXT", "stage_s TEXT"),
    ):
        connection.execute(f"ALTER TABLE outcomes ADD COLUMN {column}")
    last = -1
    while rows := connection.execute(
        "SELECT number, outcome FROM outcomes WHERE number > ? ORDER BY number LIMIT 1000", (last,)
    ).fetchall():
        connection.executemany(
            "UPDATE outcomes SET kind = ?, fitness = ?, duplicate_of = ?, binary = ?, stage_s = ?"
            " WHERE number = ?",
            ((*columns_of_text(text), number) for number, text in rows),
        )
        last = rows[-1][0]
    connection.execute("CREATE INDEX by_kind ON outcomes (kind, finished_s, stage_s)")
    for column, order in (("fitness", " DESC"), ("duplicate_of", ""), ("binary", "")):
        connection.execute(
            f"CREATE INDEX by_{column} ON outcomes ({column}{order}) WHERE {column} IS NOT NULL"
        )


def outcome_columns(outcome: Mapping[str, Json]) -> tuple[Json, ...]:
    """kind, fitness, duplicate_of, binary and stage_s of an outcome's JSON; a missing one is
    NULL."""
    stage_s, fitness = outcome.get("stage_s"), outcome.get("fitness")
    return (
        outcome.get("kind", ""),
        None if fitness is None else real(fitness),
        outcome.get("duplicate_of"),
        outcome.get("binary"),
        encode_json(stage_s) if stage_s else None,
    )


def real(number: float) -> float:
    """The number as SQLite returns it: a float, and zero without a sign."""
    return float(number) + 0.0


def columns_of_text(text: str) -> tuple[Json, ...]:
    """The columns of an outcome's text. A damaged text gives empty ones; reading it will raise the
    error."""
    try:
        return outcome_columns(json.loads(text))
    except WRONG_SHAPE:
        return outcome_columns({})


def _version_3(connection: sqlite3.Connection) -> None:
    """Adds a checksum to each outcome, in the order of storing, and one for every other table."""
    connection.execute(
        "CREATE TABLE tails (name TEXT PRIMARY KEY, rows INTEGER NOT NULL, sum INTEGER NOT NULL)"
        " STRICT"
    )
    for column in ("place", "sum"):
        connection.execute(f"ALTER TABLE outcomes ADD COLUMN {column} INTEGER")
    number, place, found = -1, 0, FIRST
    query = f"SELECT {ROW} FROM outcomes WHERE number > ? ORDER BY number LIMIT 1000"
    while rows := connection.execute(query, (number,)).fetchall():
        sums = []
        for row in rows:
            found = row_sum((*row, place), found)
            sums.append((place, found, row[0]))
            place += 1
        connection.executemany("UPDATE outcomes SET place = ?, sum = ? WHERE number = ?", sums)
        number = rows[-1][0]
    keep_tail(connection, "outcomes", place, found)
    for table in SMALL_TABLES:
        keep_table_sum(connection, table)


def schema_of(connection: sqlite3.Connection) -> frozenset[tuple[Json, ...]]:
    """Type, name, table and SQL of each table, index, view and trigger of the store."""
    return frozenset(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


MIGRATIONS: Sequence[Callable[[sqlite3.Connection], None]] = (_version_1, _version_2, _version_3)
"""Step n takes a store from version n to n + 1. All steps and the new version are one
transaction."""


def newest_version() -> int:
    return len(MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Brings an empty or older store to the newest version, or changes nothing."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == newest_version():
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in MIGRATIONS[version:]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {newest_version()}")
    except sqlite3.Error:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


_LEAST_BYTES = 512  # SQLite's smallest page
_NOT_DAMAGE = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_IOERR,
    }
)


def opened_read_only(path: Path) -> contextlib.AbstractContextManager[sqlite3.Connection]:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        uri += "&immutable=1"  # WAL readers share an index file, which cannot be made here
    return opening(path, uri)


def require(path: Path) -> None:
    """Raises StoreError for a file that cannot be a store, before SQLite touches it."""
    if not path.is_file():
        raise StoreError(f"{path} is missing: this folder holds no run, or its store was deleted")
    # SQLite discards the log of a file that is shorter than a page, and so all data.
    if path.stat().st_size < _LEAST_BYTES:
        raise _foreign(path)


@contextlib.contextmanager
def opening(path: Path, uri: str) -> Iterator[sqlite3.Connection]:
    """A connection to the store. When the block fails, it is closed and an error of SQLite, or of
    the files beside the store, becomes a StoreError."""
    try:
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    try:
        connection.execute("PRAGMA trusted_schema = OFF")  # SQL in the file may call no function
        yield connection
    except (sqlite3.Error, OSError) as error:
        connection.close()
        raise damaged(path, error) from error
    except StoreError:
        connection.close()
        raise


def check_version(path: Path, connection: sqlite3.Connection) -> int:
    """The store's version; StoreError when this evotune cannot read it."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID or version < 1:
        raise _foreign(path)
    if version > newest_version():
        raise StoreError(
            f"{path} was written by a newer evotune (store version {version}, "
            f"this one reads up to {newest_version()}); update evotune"
        )
    return int(version)


def _foreign(path: Path) -> StoreError:
    return StoreError(
        f"{path} is not an evotune store; if it was one, take the run's folder from a copy"
    )


def damaged(path: Path, error: Exception) -> StoreError:
    """The StoreError for an error; its message says how to go on."""
    code = getattr(error, "sqlite_errorcode", None)
    # Extended codes hold the plain one in their lowest byte.
    if isinstance(error, OSError) or (isinstance(code, int) and code & 0xFF in _NOT_DAMAGE):
        return StoreError(
            f"the store {path} cannot be used now ({error}); repair that, then resume"
        )
    return StoreError(
        f"the store {path} is damaged ({error}); nothing was changed: "
        "copy the run's folder, then try `sqlite3 store.sqlite .recover` on the copy"
    )
