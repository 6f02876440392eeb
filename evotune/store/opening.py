"""A store's file: its tables and versions, how it is opened, the meaning of SQLite's errors.

There is a checksum of each row with the checksum of the row before it, and one of the whole closed
file. `check_log` finds damage in the log (WAL) that a killed writer left next to a store. SQLite
reads a log up to the first frame whose checksum fails, and takes the rest for the remains of an
earlier use of the file. So one changed byte ends the history early, without an error. But frames
carry the salts of their use of the log: frames of the present use behind the failed one show that
something was lost. Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from evotune.errors import StoreError
from evotune.trial import Json
from evotune.util.files import read_regular

# The tables of a run's store, and the steps that bring an older store to the newest version.

encode_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes one each time
WRONG_SHAPE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors from reading JSON that is cut off, nested too deeply, or of another form than was
written."""
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
    """The columns kind, fitness, duplicate_of, binary and stage_s from an outcome's JSON; None for
    a missing one."""
    stage_s, fitness = outcome.get("stage_s"), outcome.get("fitness")
    return (
        outcome.get("kind", ""),
        None if fitness is None else real(fitness),
        outcome.get("duplicate_of"),
        outcome.get("binary"),
        encode_json(stage_s) if stage_s else None,
    )


def real(number: float) -> float:
    """The number as SQLite returns it: as a float, and without the sign of zero."""
    return float(number) + 0.0


def columns_of_text(text: str) -> tuple[Json, ...]:
    """The columns of an outcome's text. They are empty if the text is damaged, because reading the
    outcome will raise the error."""
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
    """The type, name, table and SQL of each table, index, view and trigger of the store."""
    return frozenset(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


MIGRATIONS: Sequence[Callable[[sqlite3.Connection], None]] = (_version_1, _version_2, _version_3)
"""Migrations; number n takes a store from version n to n + 1. All of them and the new version
number are written in one transaction."""


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
    """A connection to the store. If the block fails, the connection is closed, and an error of
    SQLite, or of the files next to the store, becomes a StoreError."""
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
    """The store's version. Raises StoreError if this evotune cannot read it."""
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
    """The StoreError for `error`. Its message says what to do."""
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


FIRST = 0
"""The checksum that precedes the first row."""
ROW = "number, configuration, outcome, finished_s, kind, fitness, duplicate_of, binary, stage_s"
"""The columns of an outcome that its checksum covers, in addition to its place in the order of
storing."""
SMALL_TABLES = {
    "meta": "SELECT name, value FROM meta ORDER BY name",
    "confirmations": "SELECT number, outcome, finished_s FROM confirmations ORDER BY number",
    "snapshots": "SELECT told, state FROM snapshots ORDER BY told",
}
"""Tables with a few rows that may change. One checksum covers all rows of such a table."""

_encode = msgspec.msgpack.Encoder().encode  # equal values give equal bytes, in every version


def row_sum(values: Sequence[Json], before: int) -> int:
    """A row's checksum: 64 bits of BLAKE2b over its values and the checksum of the row before
    it."""
    digest = hashlib.blake2b(_encode((before, *values)), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def table_sum(rows: Iterable[Sequence[Json]]) -> tuple[int, int]:
    """The number of rows, and one checksum over all of them."""
    count, found = 0, FIRST
    for row in rows:
        found = row_sum(row, found)
        count += 1
    return count, found


def keep_table_sum(connection: sqlite3.Connection, table: str) -> None:
    """Updates the checksum of a small table after a change, in the same transaction."""
    keep_tail(connection, table, *table_sum(connection.execute(SMALL_TABLES[table])))


def keep_tail(connection: sqlite3.Connection, table: str, rows: int, found: int) -> None:
    connection.execute("INSERT OR REPLACE INTO tails VALUES (?, ?, ?)", (table, rows, found))


def tail(connection: sqlite3.Connection, table: str) -> tuple[int, int]:
    """The table's number of rows and the checksum of the last one."""
    found = connection.execute("SELECT rows, sum FROM tails WHERE name = ?", (table,)).fetchone()
    if found is None:
        raise sqlite3.DatabaseError(f"the checksum of {table} is missing")
    return found[0], found[1]


# The seal of a closed store: the SHA-256 of its file, in a file that `sha256sum -c` reads.
# A reader that finds the seal unbroken knows that no byte has changed since, and need not check row
# by row. A store without a seal (its writer was killed, or is still at work) or with a broken one
# is
# checked in full: see `evotune.store.run_store`.

_MOST_BYTES = 1000


def is_sealed(store: Path) -> bool:
    """Whether the store is closed, and its main file still has the bytes that its last writer
    left."""
    return not has_log(store) and seal_fits(store)


def seal_fits(store: Path) -> bool:
    """Whether the main file still has the bytes that its last writer left."""
    try:
        return read_regular(_seal_of(store), _MOST_BYTES).decode() == _line(store)
    except (OSError, ValueError):
        return False


def make_seal(store: Path) -> None:
    """Writes the seal after the store was closed. If that fails, readers only take longer."""
    if has_log(store):  # a reader holds the store open, so part of it is still in the log
        return
    with contextlib.suppress(OSError):
        unfinished = store.with_suffix(".sha256.new")
        unfinished.write_text(_line(store))
        os.replace(unfinished, _seal_of(store))


def break_seal(store: Path) -> None:
    """Removes the seal, as a writer does before it changes anything. After a power failure the seal
    must not reappear next to the writer's log."""
    seal = _seal_of(store)
    if seal.exists():
        seal.unlink()
        _sync_folder(store.parent)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _seal_of(store: Path) -> Path:
    return store.with_suffix(".sha256")


def has_log(store: Path) -> bool:
    """Whether a log (WAL) with content lies next to the main file."""
    try:
        return os.path.getsize(f"{store}-wal") > 0
    except FileNotFoundError:
        return False


def _line(store: Path) -> str:
    with store.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {store.name}\n"


Sums: TypeAlias = tuple[int, int]
_HEADER = struct.Struct(">8I")  # magic, version, bytes a page, use, two salts, checksum
_FRAME = struct.Struct(">6I")  # page, pages of the store after a commit or 0, salts, checksum
_MAGIC = 0x377F0682  # 1 more if the checksums are over big-endian words
_CHECKED_BYTES = 24  # of the header, by its checksum
_CHECKED_FRAME_BYTES = 8  # of a frame's header, by the frame's checksum, with the page
_PAGE_SIZES = frozenset(1 << power for power in range(9, 17))
_PAGE_BYTES_AT = 16  # the place of the page size in a main file
_JOURNAL_MODE_AT = slice(18, 20)  # of a main file: 2 with a log, 1 without
_WORD = 0xFFFFFFFF
_MOST_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """A page in the log. `whole`: its checksum fits it and the frame before it."""

    start: int
    page: int
    commit: bool
    salts: tuple[int, int]
    whole: bool
    content: memoryview

    def is_of(self, salts: tuple[int, int]) -> bool:
        """Whether it belongs to this use of the log: each use has two new salts, and a changed byte
        leaves one of them."""
        return self.salts[0] == salts[0] or self.salts[1] == salts[1]


@dataclass(frozen=True, slots=True)
class Log:
    """The log of a store: the frames that its file has, also those of earlier uses."""

    readable: bool
    """Whether the header is as it was written; else SQLite ignores the log."""
    salts: tuple[int, int]
    frames: tuple[Frame, ...]


def check_log(store: Path, connection: sqlite3.Connection) -> None:
    """Raises StoreError if the log is not this store's, or if committed changes in it can no longer
    be read. A store that is being written passes."""
    # A writer that closes the store at this moment removes the log, then makes the seal.
    if has_log(store) and seal_fits(store) and has_log(store):
        raise StoreError(
            f"{store}-wal belongs to another store: {store.name} was closed without a log; "
            f"nothing was changed: move {store.name}-wal and {store.name}-shm out of the folder, "
            "or copy both from one moment"
        )
    found = _damage(_content(store), _page_bytes(store))
    if found is not None:
        log, place = found
        held, seen = _outcomes_in(store, log), _outcomes(connection)
        gone = "the last changes may be gone"
        if held is not None and seen is not None and held > seen:
            gone = f"{held - seen} of {held} outcomes are surely lost"
        raise StoreError(
            f"the log {store}-wal is damaged near byte {place}: {gone}; "
            "nothing was changed: copy the run's folder; in the copy "
            f"`sqlite3 {store.name} 'PRAGMA wal_checkpoint(TRUNCATE)'` keeps what lies before it"
        )


def _content(store: Path) -> bytes:
    """The log as it was at one moment; empty if there is none, or a writer keeps changing it."""
    path = Path(f"{store}-wal")
    before: bytes | None = None
    for _ in range(_MOST_LOOKS):
        try:
            content = read_regular(path)
        except FileNotFoundError:
            return b""
        if content == before:
            return content
        before = content
    return b""


def _page_bytes(store: Path) -> int:
    """The size of the main file's pages."""
    head = read_regular(store, _PAGE_BYTES_AT + 2)
    size = int.from_bytes(head[_PAGE_BYTES_AT:], "big")
    return 65536 if size == 1 else size


def _damage(content: bytes, page_bytes: int) -> tuple[Log, int] | None:
    """The log and the place of its first damage; None for any log that a killed writer leaves.

    Such a log may end with a transaction that was not committed or with half a frame, which may
    lie over an older frame, and frames of an earlier use may follow.
    """
    log = parsed_log(content, page_bytes)
    if log is None:
        return None
    if not log.readable:
        return log, 0
    intact = itertools.takewhile(lambda each: each.salts == log.salts and each.whole, log.frames)
    rest = log.frames[len(list(intact)) :]
    present = [frame for frame in rest if frame.is_of(log.salts)]
    torn = len(present) == 1 and len(rest) > 1
    if present and not torn and (len(rest) == 1 or any(frame.commit for frame in present)):
        return log, rest[0].start
    return None


def parsed_log(content: bytes, page_bytes: int) -> Log | None:
    """The log that these bytes are; None for one without a frame. `page_bytes` is what the main
    file says; a log with an undamaged header knows better."""
    if len(content) < _HEADER.size + _FRAME.size:
        return None
    magic, version, told_bytes, _, *rest = _HEADER.unpack_from(content)
    salts, sums = (rest[0], rest[1]), (rest[2], rest[3])
    order = ">" if magic & 1 else "<"
    readable = (magic & ~1, version) == (_MAGIC, 3007000) and sums == _summed(
        content[:_CHECKED_BYTES], (0, 0), order
    )
    if readable:
        page_bytes = told_bytes
    else:  # the first frame has what the header should have
        order = "<" if struct.pack("=I", 1)[0] else ">"
        first = _FRAME.unpack_from(content, _HEADER.size)
        salts = (first[2], first[3])
    size = _FRAME.size + page_bytes
    if page_bytes not in _PAGE_SIZES or len(content) < _HEADER.size + size:
        return None
    return Log(readable, salts, tuple(_frames(content, size, sums, order)))


def _frames(content: bytes, size: int, before: Sums, order: str) -> Iterator[Frame]:
    view = memoryview(content)
    for start in range(_HEADER.size, len(content) - size + 1, size):
        page, pages, one, other, *sums = _FRAME.unpack_from(content, start)
        body = view[start + _FRAME.size : start + size]
        found = _summed(view[start : start + _CHECKED_FRAME_BYTES], before, order)
        found = _summed(body, found, order)
        before = (sums[0], sums[1])
        yield Frame(start, page, pages > 0, (one, other), found == before, body)


def _summed(content: bytes | memoryview, before: Sums, order: str) -> Sums:
    """SQLite's checksum of the content, continued from another checksum."""
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    one, other = before
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + other) & _WORD
        other = (other + second + one) & _WORD
    return one, other


# How many outcomes are gone.


def _outcomes(connection: sqlite3.Connection) -> int | None:
    """The number of outcomes that the store says it holds; None if it cannot be read."""
    try:
        return tail(connection, "outcomes")[0]
    except sqlite3.Error:
        return None


def _outcomes_in(store: Path, log: Log) -> int | None:
    """The outcomes that the store held, according to the undamaged frames."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / store.name
        shutil.copyfile(store, copy)
        with copy.open("r+b") as file:
            for frame in log.frames:
                if frame.whole and frame.is_of(log.salts):
                    file.seek((frame.page - 1) * len(frame.content))
                    file.write(frame.content)
            file.seek(_JOURNAL_MODE_AT.start)
            file.write(b"\1\1")
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            return _outcomes(connection)
