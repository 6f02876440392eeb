"""Queries of a run's store: facts, outcomes, confirmations, snapshots."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import operator
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from evotune.store.opening import WRONG_SHAPE, damaged
from evotune.trial import Configuration, Json, Outcome, OutcomeKind, Trial, Value, parse_json

AROUND_SEARCH = "around_search_s"
"""The name of the fact that holds the seconds of work outside the search."""
PHASES = "phases"
"""The name of the fact that holds the seconds of each phase, over all parts of the run."""
UNCONFIRMED = "unconfirmed"
"""The name of the fact that says why champions are missing; "" where none is."""
_CHOSEN = "(SELECT value FROM json_each(?))"
_TRIAL = "SELECT number, configuration, outcome FROM outcomes"
Row: TypeAlias = tuple[int, str, str, float]
"""A trial's number, configuration, outcome and finishing time, as they are stored."""


class StoreQueries:
    """Reads an open store. StoreError where the store holds content of another shape than evotune
    writes."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    # --- facts about the run -------------------------------------------------------------

    def meta(self, name: str, default: Json = None) -> Json:
        rows = self._read("SELECT value FROM meta WHERE name = ?", (name,))
        return self._parse(rows[0][0]) if rows else default

    @contextlib.contextmanager
    def trusting_facts(self) -> Iterator[None]:
        """Turns an error while stored JSON is read into StoreError, since JSON of another shape is
        damage."""
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
        """The trials with this machine code and these launches that were measured and are no
        duplicates, in proposal order."""
        for row in self.each_row(
            f"{_TRIAL} WHERE binary = ? AND duplicate_of IS NULL ORDER BY number", (binary,)
        ):
            yield self.trial_of(*row)

    def trial_of(self, number: int, configuration: str, outcome: str) -> Trial:
        """The trial of a row's texts. StoreError when `append` cannot have written them."""
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
        confirming. For a killed run the time after its last outcome is missing."""
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
        """The fittest trial with a number below `before`; among equals the earliest."""
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

    def _read(self, query: str, values: tuple[Json, ...] = ()) -> list[tuple[Json, ...]]:
        return list(self.each_row(query, values))

    def each_row(self, query: str, values: tuple[Json, ...] = ()) -> Iterator[tuple[Json, ...]]:
        """The rows one by one, so that a million of them need not be in memory at once."""
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
    """The trials that were the best so far when they were told, or when they finished."""
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
