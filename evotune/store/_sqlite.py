"""The store of one run: a SQLite file in WAL mode with one writer and any number of readers.

The store guarantees:

- Once `append` has returned, its outcome survives the death of this process.
- A power cut loses the last second at most and never damages the store: `synchronous=NORMAL`, with
  a full fsync at least every second, by `append` or in quiet moments by `sync`.
- Outcomes are never changed or deleted.
- A store that is not as it was written is refused when it is opened.
"""

from __future__ import annotations

import array
import contextlib
import functools
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from evotune.errors import StoreError
from evotune.store._checksums import (
    FIRST,
    ROW,
    SMALL_TABLES,
    break_seal,
    is_sealed,
    keep_table_sum,
    keep_tail,
    make_seal,
    row_sum,
    table_sum,
    tail,
)
from evotune.store._log import check_log
from evotune.store.opening import (
    MIGRATIONS,
    WRONG_SHAPE,
    check_version,
    columns_of_text,
    damaged,
    encode_json,
    migrate,
    newest_version,
    opened_read_only,
    opening,
    outcome_columns,
    real,
    require,
    schema_of,
)
from evotune.store.queries import StoreQueries
from evotune.trial import Json, Outcome, Trial

_SYNC_EVERY_S = 1.0
_FEW = 20_000
"""So many outcomes can be checked in a fraction of a second."""
_CHECKED_EVERY_S = 1e-3
"""A writer that closes a store of many outcomes checks it only if it was open for this many seconds
per outcome. A check takes less than 1e-5 s an outcome, so less than 1% of the time."""


class RunStore(StoreQueries):
    """The store of one run. Make it with `create`, or open it with `open_for_writing` or
    `open_for_reading`."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, file: os.stat_result | None = None
    ) -> None:
        """`file` is the writer's open file, None for a reader."""
        super().__init__(path, connection)
        self._file = file
        self._opened_s = self._synced_s = time.monotonic()
        self._unsynced = False
        self._usual = "NORMAL"

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, Json] | None = None) -> RunStore:
        """A new store with `facts` (see `meta`). Its file appears with all facts or not at all.

        StoreError if the file exists or cannot be made.
        """
        if path.exists():
            raise StoreError(f"{path} exists already")
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            _remove(unfinished)
            store = cls._open_writable(unfinished)
            with contextlib.closing(store._connection) as connection:
                store.set_facts(facts or {})
                # The log keeps the old name. Closing moves it too, but does not tell if it cannot.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            os.rename(unfinished, path)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):
                _remove(unfinished)
            raise damaged(path, error) from error
        return cls._open_writable(path)

    @classmethod
    def open_for_writing(cls, path: Path, *, checked: bool = False) -> RunStore:
        """An existing store, brought to the newest version. A damaged store is refused and stays as
        it is. With `checked`, this process, which holds the run's lock, has just found it whole."""
        require(path)
        if not checked:
            # A closing writer moves the log into the main file, even into a damaged one.
            with opened_read_only(path) as connection:
                check_log(path, connection)
                _check(path, connection, check_version(path, connection))
                connection.close()
        return cls._open_writable(path)

    @classmethod
    def open_for_reading(cls, path: Path, *, checked: bool = False) -> RunStore:
        """Reads a store that may be in use. Writes nothing into it, even if its version is older.

        With `checked`, this process has found it whole before and does not check it again.
        """
        require(path)
        with opened_read_only(path) as connection:
            if not checked:
                check_log(path, connection)
            version = check_version(path, connection)
            if not checked:
                _check(path, connection, version)
            if version == newest_version():
                return cls(path, connection)
            # A temporary store, which SQLite keeps in memory, and in a file when it is large.
            newest = sqlite3.connect("", isolation_level=None)
            connection.backup(newest)
            connection.close()
            migrate(newest)
            return cls(path, newest)

    @classmethod
    def _open_writable(cls, path: Path) -> RunStore:
        new = not path.exists()
        with opening(path, path.resolve().as_uri()) as connection:
            if not new:
                check_version(path, connection)
            break_seal(path)
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            # A log without frames of an earlier use: damage in it can be told from their remains.
            connection.execute("PRAGMA journal_size_limit = 0")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            migrate(connection)
            store = cls(path, connection, os.stat(path))
            if mode != "wal":  # some network folders have no WAL: there every commit must be synced
                store._usual = "FULL"
            connection.execute(f"PRAGMA synchronous = {store._usual}")
            return store

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the store. A writer seals an undamaged one, so that readers need not check it."""
        whole = self._file is not None and self._is_whole()
        self._connection.close()
        if whole:
            make_seal(self.path)

    def _is_whole(self) -> bool:
        """Whether the store shows no damage. It was whole when it was opened, so it is only checked
        again where that takes little of the time."""
        try:
            count, _ = tail(self._connection, "outcomes")
            enough_s = 0.0 if count <= _FEW else count * _CHECKED_EVERY_S
            if time.monotonic() - self._opened_s >= enough_s:
                verify(self._connection, newest_version())
        except (sqlite3.Error, *WRONG_SHAPE):
            return False
        return True

    # --- facts about the run -------------------------------------------------------------

    def set_meta(self, name: str, value: Json) -> None:
        self.set_facts({name: value})

    def set_facts(self, facts: Mapping[str, Json]) -> None:
        """Stores all facts in one transaction."""
        rows = [(name, json.dumps(value)) for name, value in facts.items()]
        with self._writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
            keep_table_sum(connection, "meta")

    # --- outcomes ------------------------------------------------------------------------

    def append(self, trial: Trial, finished_s: float) -> None:
        """Commits one outcome. `finished_s` counts from the run's start, without the pauses between
        its parts."""
        outcome = trial.outcome.to_json()
        row = (
            trial.number,
            trial.configuration.key,
            encode_json(outcome),
            real(finished_s),
            *outcome_columns(outcome),
        )
        with self._writing() as connection:
            place, before = tail(connection, "outcomes")
            found = row_sum((*row, place), before)
            connection.execute(
                f"INSERT INTO outcomes ({ROW}, place, sum) VALUES ({'?, ' * len(row)}?, ?)",
                (*row, place, found),
            )
            keep_tail(connection, "outcomes", place + 1, found)

    # --- champions and the search's state --------------------------------------------------

    def confirm(self, number: int, outcome: Outcome, finished_s: float) -> None:
        """Stores the outcome of measuring trial `number` again in a fresh process."""
        row = (number, encode_json(outcome.to_json()), real(finished_s))
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO confirmations VALUES (?, ?, ?)", row)
            keep_table_sum(connection, "confirmations")

    def save_snapshot(self, told: int, state: Json) -> None:
        """Stores the search's state after `told` tells, and deletes all older snapshots but one."""
        row = (told, json.dumps(state))
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", row)
            connection.execute(
                "DELETE FROM snapshots WHERE told NOT IN"
                " (SELECT told FROM snapshots ORDER BY told DESC LIMIT 2)"
            )
            keep_table_sum(connection, "snapshots")

    # --- durability ------------------------------------------------------------------------

    def sync(self) -> None:
        """Writes appended outcomes to the disk if that is due, so that they survive a power cut.
        To be called in quiet moments."""
        if not (self._unsynced and self._sync_is_due()):
            return
        try:
            query = "PRAGMA wal_checkpoint(PASSIVE)"
            busy, pages, moved = self._connection.execute(query).fetchone()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error
        if busy or moved < pages:  # a reader holds on to older pages: maybe nothing was synced
            self.set_facts({})  # a commit that is due syncs the whole log
        self._unsynced = False
        self._synced_s = time.monotonic()

    def _sync_is_due(self) -> bool:
        return time.monotonic() - self._synced_s >= _SYNC_EVERY_S

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of its changes are kept, or none."""
        self._require_file()
        due = self._sync_is_due()
        connection = self._connection
        try:
            if due:
                connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                if connection.in_transaction:  # a full disk has ended it already
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            if due:
                connection.execute(f"PRAGMA synchronous = {self._usual}")
                self._synced_s = time.monotonic()
            self._unsynced = not due
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def _require_file(self) -> None:
        """StoreError if the file was deleted or replaced: SQLite would write into the deleted one
        without an error."""
        try:
            there = self._file is None or os.path.samestat(os.stat(self.path), self._file)
        except OSError:
            there = False
        if not there:
            raise StoreError(f"the store {self.path} was deleted or replaced while it was in use")


def _remove(unfinished: Path) -> None:
    """Removes a store that was not finished, with its log."""
    for name in (str(unfinished), f"{unfinished}-wal", f"{unfinished}-shm"):
        Path(name).unlink(missing_ok=True)


def _check(path: Path, connection: sqlite3.Connection, version: int) -> None:
    """StoreError when the store is not as it was written."""
    try:
        check_schema(connection, version)
        if version < newest_version() or not is_sealed(path):
            verify(connection, version)
    except (sqlite3.Error, *WRONG_SHAPE) as error:
        raise damaged(path, error) from error


# Verifies that a store is as it was written: its schema, its pages and its rows.
#
# Damage that SQLite does not see (a changed digit in a text, swapped pages, an older page in place
# of a newer one) breaks a checksum, the order of the rows or their number.
def verify(connection: sqlite3.Connection, version: int) -> None:
    """Raises sqlite3.Error or one of `WRONG_SHAPE` when anything is not as it was written.

    Reads the whole store, as of one moment. A store before version 3 has no checksums: its schema
    and pages are checked, and since version 2 that each outcome's columns repeat its text.
    """
    check_schema(connection, version)
    connection.execute("BEGIN")
    try:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        _require(found == "ok", found.partition("\n")[0])
        if version >= 2:
            _check_repeated(connection)
        if version >= 3:
            _check_outcomes(connection)
            for table, query in SMALL_TABLES.items():
                expected = tail(connection, table)
                _require(table_sum(connection.execute(query)) == expected, f"{table} was changed")
    finally:
        connection.execute("ROLLBACK")


def check_schema(connection: sqlite3.Connection, version: int) -> None:
    """sqlite3.DatabaseError when the tables, indexes, views and triggers are not those of a store
    of that version: foreign SQL would run while the store is read."""
    _require(schema_of(connection) == _expected_schema(version), "its tables are not a run's")


@functools.cache
def _expected_schema(version: int) -> frozenset[tuple[Json, ...]]:
    connection = sqlite3.connect(":memory:")
    try:
        for step in MIGRATIONS[:version]:
            step(connection)
        return schema_of(connection)
    finally:
        connection.close()


class _Repeated(msgspec.Struct):
    """The parts of an outcome's text that its columns repeat."""

    kind: str = ""
    fitness: float | None = None
    duplicate_of: int | None = None
    binary: str | None = None
    stage_s: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Repeated).decode


def _check_repeated(connection: sqlite3.Connection) -> None:
    query = "SELECT number, outcome, kind, fitness, duplicate_of, binary, stage_s FROM outcomes"
    for number, text, *columns in connection.execute(query):
        try:
            part = _decode(text)
            stage_s = bytes(part.stage_s).decode() or None
            found = [part.kind, part.fitness, part.duplicate_of, part.binary, stage_s]
        except ValueError:  # msgspec is strict and refuses NaN too
            found = list(columns_of_text(text))
        if found != columns and list(columns_of_text(text)) != columns:
            raise sqlite3.DatabaseError(f"the columns of outcome {number} contradict its text")


def _check_outcomes(connection: sqlite3.Connection) -> None:
    count, last = tail(connection, "outcomes")
    (stored,) = connection.execute("SELECT count(*) FROM outcomes NOT INDEXED").fetchone()
    _require(stored == count, f"it holds {stored} outcomes of {count}")
    sums = array.array("q", bytes(8 * count))
    known = bytearray(count)
    for place, found in connection.execute("SELECT place, sum FROM outcomes"):
        if not 0 <= place < count or known[place]:
            raise sqlite3.DatabaseError("an outcome is not in its place")
        known[place] = 1
        sums[place] = found
    _require(last == (sums[-1] if count else FIRST), "the last outcome is not in its place")
    for *row, place in connection.execute(f"SELECT {ROW}, place FROM outcomes"):
        before = sums[place - 1] if place else FIRST
        if row_sum((*row, place), before) != sums[place]:
            raise sqlite3.DatabaseError(f"outcome {row[0]} was changed")


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise sqlite3.DatabaseError(reason)
