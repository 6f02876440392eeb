"""The store of one run: a SQLite file in WAL mode with one writer and any number of readers.

Guarantees: an outcome that `append` returned from survives the death of this process; a power
cut loses at most the last second (`synchronous=NORMAL`, with a full fsync at least that often, by
`append` or in quiet moments by `sync`) and never consistency. Outcomes are never changed or
deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from evotune.errors import StoreError
from evotune.store.opening import (
    WRONG_SHAPE,
    check_pages,
    check_version,
    damaged,
    opened_read_only,
    opening,
    require,
)
from evotune.store.schema import encode_json, migrate, newest_version, outcome_columns
from evotune.trial import Configuration, Json, Outcome, OutcomeKind, Trial

_SYNC_EVERY_S = 1.0
_CHOSEN = "(SELECT value FROM json_each(?))"
_TRIAL = "SELECT number, configuration, outcome FROM outcomes"
Row: TypeAlias = tuple[int, str, str, float]
"""Number, configuration, outcome and finishing time of a trial, as they are stored."""


class RunStore:
    """Create with `create`, open with `open_for_writing` or `open_for_reading`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._synced_s = time.monotonic()
        self._unsynced = False

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, Json] | None = None) -> RunStore:
        """A new store that knows `facts` (see `meta`): it appears with all of them, or not at all.

        StoreError if the file exists or cannot be made.
        """
        if path.exists():
            raise StoreError(f"{path} exists already")
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.unlink(missing_ok=True)
        with cls._open_writable(unfinished) as store:
            for name, value in (facts or {}).items():
                store.set_meta(name, value)
        os.rename(unfinished, path)
        return cls._open_writable(path)

    @classmethod
    def open_for_writing(cls, path: Path) -> RunStore:
        """An existing store, brought to the newest version first; a damaged one stays as it is."""
        require(path)
        # A writer that closes moves the log into the main file, whatever state that is in.
        with opened_read_only(path) as connection:
            check_version(path, connection)
            check_pages(path, connection)
            connection.close()
        return cls._open_writable(path)

    @classmethod
    def open_for_reading(cls, path: Path) -> RunStore:
        """Reads a store that may be in use; writes nothing into it, whatever its version."""
        require(path)
        with opened_read_only(path) as connection:
            if check_version(path, connection) == newest_version():
                return cls(path, connection)
            newest = sqlite3.connect("", isolation_level=None)  # in memory, large ones in a file
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
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode == "wal":  # without it (some network folders), every commit must be synced
                connection.execute("PRAGMA synchronous = NORMAL")
            migrate(connection)
            return cls(path, connection)

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
        self._connection.close()

    # --- facts about the run -------------------------------------------------------------

    def set_meta(self, name: str, value: Json) -> None:
        self._write(
            "INSERT INTO meta VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, json.dumps(value)),
        )

    def meta(self, name: str, default: Json = None) -> Json:
        rows = self._read("SELECT value FROM meta WHERE name = ?", (name,))
        return self._parse(rows[0][0]) if rows else default

    @contextlib.contextmanager
    def trusting_facts(self) -> Iterator[None]:
        """Around what is made of stored JSON: another shape than was stored is damage."""
        try:
            yield
        except WRONG_SHAPE as error:
            raise damaged(self.path, error) from error

    # --- outcomes ------------------------------------------------------------------------

    def append(self, trial: Trial, finished_s: float) -> None:
        """Commits one outcome; `finished_s` counts from the run's start, pauses left out."""
        outcome = trial.outcome.to_json()
        self._write(
            "INSERT INTO outcomes (number, configuration, outcome, finished_s,"
            " kind, fitness, duplicate_of, binary, stage_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                trial.number,
                trial.configuration.key,
                encode_json(outcome),
                finished_s,
                *outcome_columns(outcome),
            ),
        )

    def trials(self, first: int = 0) -> Iterator[Trial]:
        """Stored trials in proposal order, from number `first` on."""
        for row in self.each_row(f"{_TRIAL} WHERE number >= ? ORDER BY number", (first,)):
            yield self.trial_of(*row)

    def rows(self) -> Iterator[Row]:
        """All trials in proposal order, unread."""
        query = "SELECT number, configuration, outcome, finished_s FROM outcomes ORDER BY number"
        return self.each_row(query)

    def trials_of(self, numbers: Iterable[int]) -> list[Trial]:
        """Those of `numbers` that are stored, in proposal order."""
        query = f"{_TRIAL} WHERE number IN {_CHOSEN} ORDER BY number"
        return [self.trial_of(*row) for row in self.each_row(query, (json.dumps(list(numbers)),))]

    def known(self, numbers: Iterable[int]) -> dict[int, bool]:
        """Those of `numbers` that are stored, and whether they have a fitness."""
        query = f"SELECT number, fitness IS NOT NULL FROM outcomes WHERE number IN {_CHOSEN}"
        return {n: bool(ok) for n, ok in self.each_row(query, (json.dumps(list(numbers)),))}

    def fittest(self) -> Iterator[int]:
        """Numbers of the trials with a fitness, best first; of equals, the first."""
        for (number,) in self.each_row(
            "SELECT number FROM outcomes WHERE fitness IS NOT NULL ORDER BY fitness DESC, number"
        ):
            yield number

    def best_first(self) -> Iterator[Trial]:
        """Trials with a fitness, in the order of `fittest`; each is read when it is asked for."""
        for number in self.fittest():
            yield from self.trials_of([number])

    def duplicates(self) -> dict[int, int]:
        """Trial -> the one that it is a duplicate of, in proposal order."""
        rows = self._read(
            "SELECT number, duplicate_of FROM outcomes WHERE duplicate_of IS NOT NULL"
        )
        return dict(sorted(rows))

    def with_binary(self, binary: str) -> Iterator[Trial]:
        """Trials of that machine code and launch that were measured themselves, in order."""
        for row in self.each_row(
            f"{_TRIAL} WHERE binary = ? AND duplicate_of IS NULL ORDER BY number", (binary,)
        ):
            yield self.trial_of(*row)

    def trial_of(self, number: int, configuration: str, outcome: str) -> Trial:
        """Of a row's texts; StoreError when they are not what `append` writes."""
        try:
            found = Configuration.from_key(configuration)
        except WRONG_SHAPE as error:
            raise damaged(self.path, error) from error
        return Trial(number, found, self._outcome(outcome))

    def finish_times_s(self, numbers: Iterable[int]) -> dict[int, float]:
        """When each of those trials finished, in seconds of the run's own time."""
        query = f"SELECT number, finished_s FROM outcomes WHERE number IN {_CHOSEN} ORDER BY number"
        with self.trusting_facts():
            rows = self.each_row(query, (json.dumps(list(numbers)),))
            return {number: _finite(seconds) for number, seconds in rows}

    def elapsed_s(self) -> float:
        """When the last trial finished."""
        ((latest,),) = self._read("SELECT coalesce(max(finished_s), 0) FROM outcomes")
        with self.trusting_facts():
            return _finite(latest)

    def stage_s(self) -> dict[str, list[float]]:
        """Seconds by stage of every trial that went through it."""
        seconds: dict[str, list[float]] = {}
        for (text,) in self.each_row("SELECT stage_s FROM outcomes WHERE stage_s IS NOT NULL"):
            with self.trusting_facts():
                for stage, spent_s in json.loads(text).items():
                    seconds.setdefault(stage, []).append(_finite(spent_s))
        return seconds

    def kinds(self) -> dict[OutcomeKind, int]:
        """How many trials ended as what."""
        rows = self._read("SELECT kind, count(*) FROM outcomes GROUP BY kind")
        try:
            return {OutcomeKind(kind): count for kind, count in rows}
        except ValueError as error:
            raise damaged(self.path, error) from error

    def count(self) -> int:
        return int(self._read("SELECT count(*) FROM outcomes")[0][0])

    def count_ok(self) -> int:
        """Outcomes with a fitness."""
        return int(self._read("SELECT count(*) FROM outcomes WHERE fitness IS NOT NULL")[0][0])

    def first_missing(self) -> int:
        """The lowest number without an outcome."""
        low, high = 0, self.count()  # none is missing below `low`, one is at `high` or below it
        while low < high:
            middle = (low + high) // 2
            ((known,),) = self._read(
                "SELECT count(*) FROM outcomes WHERE number BETWEEN ? AND ?", (low, middle)
            )
            low, high = (middle + 1, high) if known == middle + 1 - low else (low, middle)
        return low

    def best(self, before: int) -> Trial | None:
        """The fittest trial below that number; of equals, the first."""
        rows = self._read(
            f"{_TRIAL} WHERE number < ? AND fitness IS NOT NULL"
            " ORDER BY fitness DESC, number LIMIT 1",
            (before,),
        )
        return self.trial_of(*rows[0]) if rows else None

    def history_digest(self) -> str:
        """SHA-256 over (number, configuration) of every stored trial: what was tried, in order."""
        digest = hashlib.sha256()
        for number, key in self.each_row(
            "SELECT number, configuration FROM outcomes ORDER BY number"
        ):
            digest.update(f"{number} {key}\n".encode())
        return digest.hexdigest()

    @contextlib.contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """All that is read in the block is of one moment, whatever a writer does meanwhile."""
        self._read("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:  # not after every error
                self._read("ROLLBACK")

    # --- champions and the search's state --------------------------------------------------

    def confirm(self, number: int, outcome: Outcome, finished_s: float) -> None:
        """The outcome of measuring trial `number` again in a fresh process."""
        self._write(
            "INSERT INTO confirmations VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE"
            " SET outcome = excluded.outcome, finished_s = excluded.finished_s",
            (number, encode_json(outcome.to_json()), finished_s),
        )

    def confirmations(self) -> dict[int, Outcome]:
        return {
            number: self._outcome(outcome)
            for number, outcome in self._read("SELECT number, outcome FROM confirmations")
        }

    def save_snapshot(self, told: int, state: Json) -> None:
        """The search's state after `told` tells; older snapshots leave, but one."""
        self._write("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (told, json.dumps(state)))
        self._write(
            "DELETE FROM snapshots WHERE told NOT IN"
            " (SELECT told FROM snapshots ORDER BY told DESC LIMIT 2)",
            (),
        )

    def snapshot(self, at_most: int) -> tuple[int, Json] | None:
        """The newest snapshot with no more than `at_most` tells."""
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

    def sync(self) -> None:
        """For quiet moments: what was appended survives a power cut from now on, if that is due."""
        if not (self._unsynced and self._sync_is_due()):
            return
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error
        self._unsynced = False
        self._synced_s = time.monotonic()

    def _sync_is_due(self) -> bool:
        return time.monotonic() - self._synced_s >= _SYNC_EVERY_S

    def _write(self, statement: str, values: tuple[Json, ...]) -> None:
        due = self._sync_is_due()
        try:
            if due:
                self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(statement, values)
            if due:
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._synced_s = time.monotonic()
            self._unsynced = not due
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error

    def _read(self, query: str, values: tuple[Json, ...] = ()) -> list[tuple[Json, ...]]:
        return list(self.each_row(query, values))

    def each_row(self, query: str, values: tuple[Json, ...] = ()) -> Iterator[tuple[Json, ...]]:
        """Row by row: a million of them do not lie in memory at once."""
        try:
            # `yield from` would close the cursor with the generator, after the connection.
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            raise damaged(self.path, error) from error


def read_row(row: Row) -> tuple[Trial, float]:
    """The trial, and when it finished, in seconds of the run's own time; one of `WRONG_SHAPE` when
    that is not what `append` writes."""
    number, configuration, outcome, finished_s = row
    trial = Trial(number, Configuration.from_key(configuration), Outcome.from_text(outcome))
    return trial, _finite(finished_s)


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError(f"a time of {seconds} s")
    return seconds
