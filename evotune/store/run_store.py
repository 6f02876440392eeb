"""The store of one run: a SQLite file in WAL mode with one writer and any number of readers.

The store guarantees:

- Once `append` has returned, its outcome survives the death of this process.
- A power cut loses at most the last second and never damages the store: `synchronous=NORMAL`, with
  a full fsync at least every second, by `append` or, in quiet moments, by `sync`.
- Outcomes are never changed or deleted.
- A store that is not as it was written is refused when it is opened.
"""

from __future__ import annotations

import array
import contextlib
import functools
import hashlib
import json
import math
import operator
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import msgspec

from evotune.errors import StoreError
from evotune.store.opening import (
    FIRST,
    MIGRATIONS,
    ROW,
    SMALL_TABLES,
    WRONG_SHAPE,
    break_seal,
    check_log,
    check_version,
    columns_of_text,
    damaged,
    encode_json,
    is_sealed,
    keep_table_sum,
    keep_tail,
    make_seal,
    migrate,
    newest_version,
    opened_read_only,
    opening,
    outcome_columns,
    real,
    require,
    row_sum,
    schema_of,
    table_sum,
    tail,
)
from evotune.trial import Configuration, Json, Outcome, OutcomeKind, Trial, Value, parse_json

AROUND_SEARCH = "around_search_s"
"""The name of the fact with the seconds of work outside the search."""
PHASES = "phases"
"""The name of the fact with the seconds of each phase, over all parts of the run."""
UNCONFIRMED = "unconfirmed"
"""The name of the fact that says why champions are missing; "" if none is."""
_CHOSEN = "(SELECT value FROM json_each(?))"
_TRIAL = "SELECT number, configuration, outcome FROM outcomes"
Row: TypeAlias = tuple[int, str, str, float]
"""A trial's number, configuration, outcome and finishing time, as they are stored."""


class StoreQueries:
    """Queries of an open store. They raise StoreError if the store has content of another form than
    evotune writes."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    # --- facts about the run -------------------------------------------------------------

    def meta(self, name: str, default: Json = None) -> Json:
        rows = self._read("SELECT value FROM meta WHERE name = ?", (name,))
        return self._parse(rows[0][0]) if rows else default

    @contextlib.contextmanager
    def trusting_facts(self) -> Iterator[None]:
        """Turns an error from reading stored JSON in the block into StoreError, because JSON of
        another form is damage."""
        try:
            yield
        except WRONG_SHAPE as error:
            raise damaged(self.path, error) from error

    # --- outcomes ------------------------------------------------------------------------

    def trials(self, first: int = 0) -> Iterator[Trial]:
        """The stored trials in proposal order, from number `first` on."""
        for row in self.each_row(f"{_TRIAL} WHERE number >= ? ORDER BY number", (first,)):
            yield self.trial_of(*row)

    def rows(self) -> Iterator[Row]:
        """The rows of all trials in proposal order, without reading their JSON."""
        query = "SELECT number, configuration, outcome, finished_s FROM outcomes ORDER BY number"
        return self.each_row(query)

    def trials_of(self, numbers: Iterable[int]) -> list[Trial]:
        """The stored trials among `numbers`, in proposal order."""
        query = f"{_TRIAL} WHERE number IN {_CHOSEN} ORDER BY number"
        return [self.trial_of(*row) for row in self.each_row(query, (json.dumps(list(numbers)),))]

    def known(self, numbers: Iterable[int]) -> dict[int, bool]:
        """For each stored trial among `numbers`, whether it has a fitness."""
        query = f"SELECT number, fitness IS NOT NULL FROM outcomes WHERE number IN {_CHOSEN}"
        return {n: bool(ok) for n, ok in self.each_row(query, (json.dumps(list(numbers)),))}

    def fittest(self) -> Iterator[int]:
        """The numbers of the trials with a fitness, best first; among equals the earlier first."""
        for (number,) in self.each_row(
            "SELECT number FROM outcomes WHERE fitness IS NOT NULL ORDER BY fitness DESC, number"
        ):
            yield number

    def best_first(self) -> Iterator[Trial]:
        """The trials with a fitness, in the order of `fittest`; each is read only when needed."""
        for number in self.fittest():
            yield from self.trials_of([number])

    def duplicates(self) -> dict[int, int]:
        """For each duplicate, the number of the trial that it repeats; in proposal order."""
        rows = self._read(
            "SELECT number, duplicate_of FROM outcomes WHERE duplicate_of IS NOT NULL"
        )
        return dict(sorted(rows))

    def with_binary(self, binary: str) -> Iterator[Trial]:
        """The measured trials with this machine code and these launches, without duplicates, in
        proposal order."""
        for row in self.each_row(
            f"{_TRIAL} WHERE binary = ? AND duplicate_of IS NULL ORDER BY number", (binary,)
        ):
            yield self.trial_of(*row)

    def trial_of(self, number: int, configuration: str, outcome: str) -> Trial:
        """The trial of a row's texts. Raises StoreError if `append` cannot have written them."""
        try:
            found = Configuration.from_key(configuration)
        except WRONG_SHAPE as error:
            raise damaged(self.path, error) from error
        return Trial(number, found, self._outcome(outcome))

    def finish_times_s(self, numbers: Iterable[int]) -> dict[int, float]:
        """The finishing time of each of these trials, in seconds of the run's own time."""
        query = f"SELECT number, finished_s FROM outcomes WHERE number IN {_CHOSEN} ORDER BY number"
        with self.trusting_facts():
            rows = self.each_row(query, (json.dumps(list(numbers)),))
            return {number: _finite(seconds) for number, seconds in rows}

    def elapsed_s(self) -> float:
        """The seconds of work over all parts of the run: timing the baselines, searching,
        confirming. A killed run lacks the time after its last outcome."""
        with self.trusting_facts():
            return self.searched_s() + _finite(self.meta(AROUND_SEARCH, 0.0))

    def searched_s(self) -> float:
        """The seconds of searching alone, up to the end of the last trial."""
        ((latest,),) = self._read("SELECT coalesce(max(finished_s), 0) FROM outcomes")
        with self.trusting_facts():
            return _finite(latest)

    def stage_s(self) -> dict[str, list[float]]:
        """For each stage, the seconds that every trial spent in it."""
        seconds: dict[str, list[float]] = {}
        for (text,) in self.each_row("SELECT stage_s FROM outcomes WHERE stage_s IS NOT NULL"):
            with self.trusting_facts():
                for stage, spent_s in json.loads(text).items():
                    seconds.setdefault(stage, []).append(_finite(spent_s))
        return seconds

    def kinds(self) -> dict[OutcomeKind, int]:
        """The number of trials of each kind of outcome."""
        rows = self._read("SELECT kind, count(*) FROM outcomes GROUP BY kind")
        try:
            return {OutcomeKind(kind): count for kind, count in rows}
        except ValueError as error:
            raise damaged(self.path, error) from error

    def count(self) -> int:
        return int(self._read("SELECT count(*) FROM outcomes")[0][0])

    def count_ok(self) -> int:
        """The number of outcomes with a fitness."""
        return int(self._read("SELECT count(*) FROM outcomes WHERE fitness IS NOT NULL")[0][0])

    def first_missing(self) -> int:
        """The lowest number without an outcome."""
        low, high = 0, self.count()  # none is missing below `low`; one is, at `high` or below
        while low < high:
            middle = (low + high) // 2
            ((known,),) = self._read(
                "SELECT count(*) FROM outcomes WHERE number BETWEEN ? AND ?", (low, middle)
            )
            low, high = (middle + 1, high) if known == middle + 1 - low else (low, middle)
        return low

    def best(self, before: int) -> Trial | None:
        """The fittest trial with a number below `before`; the earliest one in a tie."""
        rows = self._read(
            f"{_TRIAL} WHERE number < ? AND fitness IS NOT NULL"
            " ORDER BY fitness DESC, number LIMIT 1",
            (before,),
        )
        return self.trial_of(*rows[0]) if rows else None

    def count_compiled(self, before: int) -> int:
        """The number of trials below `before` that reached a compiler."""
        query = "SELECT count(*) FROM outcomes WHERE number < ? AND instr(stage_s, '\"compile\":')"
        return int(self._read(query, (before,))[0][0])

    def history_digest(self) -> str:
        """SHA-256 over (number, configuration) of every stored trial, in order."""
        digest = hashlib.sha256()
        for number, key in self.each_row(
            "SELECT number, configuration FROM outcomes ORDER BY number"
        ):
            digest.update(f"{number} {key}\n".encode())
        return digest.hexdigest()

    @contextlib.contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Makes all reads in the block see the store of one moment, even if a writer works."""
        self._read("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:  # some errors have ended it already
                self._read("ROLLBACK")

    # --- champions and the search's state --------------------------------------------------

    def confirmations(self) -> dict[int, Outcome]:
        return {
            number: self._outcome(outcome)
            for number, outcome in self._read("SELECT number, outcome FROM confirmations")
        }

    def snapshot(self, at_most: int) -> tuple[int, Json] | None:
        """The newest snapshot with at most `at_most` outcomes."""
        rows = self._read(
            "SELECT told, state FROM snapshots WHERE told <= ? ORDER BY told DESC LIMIT 1",
            (at_most,),
        )
        return (rows[0][0], self._parse(rows[0][1])) if rows else None

    # --- JSON and SQL -----------------------------------------------------------------------------

    def _parse(self, text: str) -> Json:
        try:
            return json.loads(text)
        except WRONG_SHAPE as error:
            raise damaged(self.path, error) from error

    def _outcome(self, text: str) -> Outcome:
        try:
            return Outcome.from_text(text)
        except WRONG_SHAPE as error:
            raise damaged(self.path, error) from error

    def _read(self, query: str, values: tuple[Json, ...] = ()) -> list[tuple[Json, ...]]:
        return list(self.each_row(query, values))

    def each_row(self, query: str, values: tuple[Json, ...] = ()) -> Iterator[tuple[Json, ...]]:
        """The rows of a query one by one, so that a million of them need not be in memory
        together."""
        try:
            # `yield from` would close the cursor with the generator, after the connection.
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error


def read_row(row: Row) -> tuple[Trial, float]:
    """The trial and its finishing time, in seconds of the run's own time. Raises one of
    `WRONG_SHAPE` when `append` cannot have written the row."""
    number, configuration, outcome, finished_s = row
    trial = Trial(number, Configuration.from_key(configuration), Outcome.from_text(outcome))
    return trial, _finite(finished_s)


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError(f"a time of {seconds} s")
    return seconds


# Queries of a whole store by columns, so that reports on a million trials make no objects.
# NOT INDEXED scans from end to end; the index on fitness would fetch rows from all over the file.
_WITH_FITNESS = "FROM outcomes NOT INDEXED WHERE fitness IS NOT NULL"


def standings(store: StoreQueries) -> list[tuple[int, float, float, float, str]]:
    """The number, fitness, bounds of the fitness and device's model of each trial with a fitness,
    best first; among equals the earlier first."""
    # An outcome of a recorded space has neither bounds nor a device. The rows are sorted here,
    # since SQLite sorts long texts slowly.
    query = (
        "SELECT number, fitness,"
        " iif(instr(outcome, '\"fitness_') OR instr(outcome, '\"model\"'), outcome, NULL)"
        f" {_WITH_FITNESS} ORDER BY number"
    )
    found = []
    with store.trusting_facts():
        for number, fitness, text in store.each_row(query):
            if text is None:
                found.append((number, fitness, fitness, fitness, ""))
                continue
            outcome = Outcome.from_text(text)
            low = fitness if outcome.fitness_low is None else outcome.fitness_low
            high = fitness if outcome.fitness_high is None else outcome.fitness_high
            found.append((number, fitness, low, high, outcome.device_model))
    found.sort(key=operator.itemgetter(1), reverse=True)  # the sort leaves equals in their order
    return found


def records(store: StoreQueries) -> set[int]:
    """The numbers of the trials that were the best so far when they came, in the strategy's order
    or in the order of finishing."""
    query = f"SELECT number, fitness {_WITH_FITNESS}"
    found: set[int] = set()
    for order in ("number", "finished_s"):
        best = -math.inf
        for number, fitness in store.each_row(f"{query} AND duplicate_of IS NULL ORDER BY {order}"):
            if fitness > best:
                best = fitness
                found.add(number)
    return found


def trials_like(store: StoreQueries, values: Mapping[str, Value]) -> list[int]:
    """The numbers of the trials of this configuration."""
    query = "SELECT number FROM outcomes WHERE configuration = ? ORDER BY number"
    return [number for (number,) in store.each_row(query, (Configuration(values).key,))]


def failures(store: StoreQueries) -> Iterator[tuple[str, str]]:
    """The kind and the reason of each trial without a fitness, in proposal order."""
    query = "SELECT kind, outcome FROM outcomes WHERE fitness IS NULL ORDER BY number"
    with store.trusting_facts():
        for kind, text in store.each_row(query):
            reason = parse_json(text).get("reason", "")
            if not isinstance(reason, str):
                raise TypeError(f"reason is {reason!r:.40}")
            yield kind, reason


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
        """Makes a new store with `facts` (see `meta`). Its file appears with all facts or not at
        all.

        Raises StoreError if the file exists or cannot be made.
        """
        if path.exists():
            raise StoreError(f"{path} exists already")
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            _remove(unfinished)
            store = cls._open_writable(unfinished)
            with contextlib.closing(store._connection) as connection:
                store.set_facts(facts or {})
                # The log keeps the old name. Closing moves it too, but does not report a failure.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            os.rename(unfinished, path)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):
                _remove(unfinished)
            raise damaged(path, error) from error
        return cls._open_writable(path)

    @classmethod
    def open_for_writing(cls, path: Path, *, checked: bool = False) -> RunStore:
        """Opens an existing store and brings it to the newest version. A damaged store is refused
        and stays as it is. `checked`: this process holds the run's lock and has just checked the
        store."""
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
        """Opens a store for reading, which may be in use. Writes nothing into it, even if its
        version is older.

        `checked`: this process has checked the store before and does not check it again.
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
            # A log without frames of an earlier use, so that damage cannot be mistaken for their
            # remains.
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
        """Whether the store shows no damage. It was whole when it was opened, so it is checked
        again only if that takes a small share of the time."""
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
        """Stores the search's state after `told` outcomes. Of the older snapshots only the newest
        is kept.
        """
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
        """Writes appended outcomes to the disk if that is due, so that they survive a power
        failure. Call it in quiet moments."""
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
        """Raises StoreError if the file was deleted or replaced: SQLite would write into the
        deleted one without an error."""
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
    """Raises StoreError if the store is not as it was written."""
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
    """Raises sqlite3.Error or one of `WRONG_SHAPE` if anything is not as it was written.

    Reads the whole store in one transaction. A store before version 3 has no checksums: its schema
    and pages are checked and, since version 2, that each outcome's columns repeat its text.
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
    """Raises sqlite3.DatabaseError unless the tables, indexes, views and triggers are those of a
    store of `version`, because SQL of others would run while the store is read."""
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
