"""Reads the data for reports once from a run's folder: all trials, or those of a leaderboard's
head."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import math
import sys
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evotune.store import RunStore, run_store
from evotune.store.facts import Facts, read_facts
from evotune.store.opening import damaged
from evotune.trial import Json, Outcome, OutcomeKind, Trial
from evotune.util.files import read_regular

if TYPE_CHECKING:
    from evotune.runs.folder import RunFolder


_HEAD_ROWS = 20  # of the leaderboard, which a page shows


@dataclass(frozen=True, slots=True)
class Totals:
    """Figures over all trials of a run, including trials that were not loaded.

    - `outcomes`: counts by kind, `in_order`.
    - `elapsed_s`: the time at work; see `RunStore`.
    - `searched_s`: the search's part of that time.
    - `stage_s`: the seconds of each stage, for every trial that went through it.
    - `unloaded_rows`: the number of leaderboard rows that were not loaded.
    """

    outcomes: Mapping[str, int]
    duplicates: int = 0
    elapsed_s: float = 0.0
    searched_s: float = 0.0
    stage_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    unloaded_rows: int = 0

    @property
    def trials(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class Sample:
    """A choice of trials from a large run: the first `leaders` rows of the leaderboard, all trials
    that were the best so far, the space's default, and every trial whose number is a multiple of
    `every`."""

    every: int
    leaders: int


@dataclass(frozen=True, slots=True)
class RunData:
    """The data of a run, finished or not, read from its folder.

    - `finish_times_s`: seconds of searching until each trial ended.
    - `confirmations`: the confirmations of stored trials only.
    - `holder`: the process that works on the run; None without one.
    """

    id: str
    path: str
    facts: Facts
    environment: Mapping[str, Json]
    trials: tuple[Trial, ...]
    finish_times_s: Mapping[int, float]
    confirmations: Mapping[int, Outcome]
    totals: Totals
    holder: int | None = None
    store: RunStore | None = None
    """The open store, if `trials` has only a part of the trials; `evotune.report.whole` reads all
    trials from it."""
    sample: Sample | None = None

    @classmethod
    @contextlib.contextmanager
    def opened(cls, run: RunFolder) -> Iterator[RunData]:
        """Opens a run to read it trial by trial, in its present state. Raises the errors of
        `load`."""
        with RunStore.open_for_reading(run.store) as store, store.at_one_moment():
            head = cls._read(run, store, _HEAD_ROWS)
            if len(head.trials) == head.totals.trials:
                yield head
                return
            with without_collecting():
                yield dataclasses.replace(head, store=store)

    @classmethod
    @contextlib.contextmanager
    def thinned(cls, run: RunFolder, most: int, more: Collection[int] = ()) -> Iterator[RunData]:
        """The run with all trials if there are at most `most`; else with a `Sample`, the trials
        `more`, and an open store. Raises the errors of `load`."""
        with RunStore.open_for_reading(run.store) as store, store.at_one_moment():
            count = store.count()
            if count <= most:
                yield cls._read(run, store)
                return
            leaders = most // 5
            every = math.ceil(count / (most - leaders))
            default = store.meta("default")
            tried = run_store.trials_like(store, default) if isinstance(default, dict) else []
            chosen = {*range(0, count, every), *run_store.records(store), *tried}
            chosen.update(number for number in more if number <= sys.maxsize)
            data = cls._read(run, store, leaders, chosen)
            yield dataclasses.replace(data, store=store, sample=Sample(every, leaders))

    @classmethod
    def load(cls, run: RunFolder, rows: int | None = None) -> RunData:
        """Loads a run; with `rows`, only the trials that the leaderboard's first `rows` rows need.

        Raises StoreError if the store is missing, damaged or from a newer evotune.
        """
        with RunStore.open_for_reading(run.store) as store, store.at_one_moment():
            return cls._read(run, store, rows)

    @classmethod
    def _read(
        cls, run: RunFolder, store: RunStore, rows: int | None = None, more: Collection[int] = ()
    ) -> RunData:
        try:
            with without_collecting():
                facts = read_facts(store)
                confirmations = store.confirmations()
                trials, unloaded = _trials(store, rows, confirmations, more)
                times = store.finish_times_s([trial.number for trial in trials])
                totals = _totals(store, unloaded)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged(run.store, error) from error
        return cls(
            id=run.id,
            path=str(run.path),
            facts=facts,
            environment=_environment(run, store.meta("environment")),
            trials=trials,
            finish_times_s=times,
            confirmations={n: o for n, o in confirmations.items() if n in times},
            totals=totals,
            holder=run.holder(),
        )

    @property
    def space(self) -> str:
        return self.facts.space

    @property
    def recorded(self) -> bool:
        """Whether the run is on a recorded space: with times but no baseline, so no speedups."""
        return self.facts.kind == "recorded"

    @property
    def state(self) -> str:
        """The stored state, but `running` while a process works on the run, and `killed` if it is
        stored as running and no process works on it."""
        stored = self.facts.state
        if self.holder is not None:
            return "running"
        return "killed" if stored == "running" else stored

    @property
    def threads(self) -> int | None:
        """The number of threads of both candidate and baseline; None on other devices than
        CPUs."""
        found = self.facts.device.attributes.get("threads")
        return found if isinstance(found, int) else None

    @property
    def beside(self) -> Mapping[int, Sequence[str]]:
        """Other work on the machine when a part of the run began, by the number of trials that were
        stored before. Empty for a run of an older evotune, which did not check."""
        return dict(sorted(self.facts.beside.items()))

    @property
    def won(self) -> bool:
        """Whether a confirmed champion is surely faster than the baseline in a timed case."""
        return any(
            measured.counts and measured.speedup_low >= 1.0
            for outcome in self.confirmations.values()
            for measured in outcome.measurements
            if outcome.ok
        )

    @property
    def won_held_out(self) -> tuple[str, ...]:
        """The held-out cases in which a confirmed champion is surely faster than the baseline."""
        return tuple(
            dict.fromkeys(
                measured.case
                for outcome in self.confirmations.values()
                for measured in outcome.measurements
                if outcome.ok
                and measured.held_out
                and measured.cache == "warm"
                and measured.speedup_low >= 1.0
            )
        )

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, in the space's order."""
        return tuple(self.trials[0].configuration) if self.trials else ()

    @property
    def cases(self) -> tuple[str, ...]:
        """Labels of the cases that make the fitness, in order of measurement."""
        return self._measured(held_out=False)

    @property
    def held_out_cases(self) -> tuple[str, ...]:
        """Labels of the cases on which only champions are measured."""
        return self._measured(held_out=True)

    def _measured(self, *, held_out: bool) -> tuple[str, ...]:
        outcomes = [*(trial.outcome for trial in self.trials), *self.confirmations.values()]
        labels = (
            measurement.case
            for outcome in outcomes
            for measurement in outcome.measurements
            if measurement.held_out == held_out
        )
        return tuple(dict.fromkeys(labels))


def _trials(
    store: RunStore,
    rows: int | None,
    confirmations: Mapping[int, Outcome],
    more: Collection[int],
) -> tuple[tuple[Trial, ...], int]:
    """The trials of the first `rows` rows and of `more`, and the number of rows left out."""
    if rows is not None:
        numbers, left = deciding(store, rows, confirmations.keys())
        if numbers or more:
            return tuple(store.trials_of(numbers.union(more))), left
    return tuple(store.trials()), 0


def in_order(kinds: Mapping[OutcomeKind, int]) -> dict[str, int]:
    """The counts by kind: valid trials first, then the failures, most frequent first."""
    ranked = sorted(kinds.items(), key=lambda item: (item[0] != "ok", -item[1], item[0]))
    return {kind.value: count for kind, count in ranked}


def _totals(store: RunStore, unloaded_rows: int) -> Totals:
    return Totals(
        outcomes=in_order(store.kinds()),
        duplicates=len(store.duplicates()),
        elapsed_s=store.elapsed_s(),
        searched_s=store.searched_s(),
        stage_s=store.stage_s(),
        unloaded_rows=unloaded_rows,
    )


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Disables the garbage collector in the block, in which a million objects are made. It would
    find nothing, because reference counting frees them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _environment(run: RunFolder, kept: Json) -> Mapping[str, Json]:
    """The content of environment.json. A report is useful without it, so a lost or changed file is
    a note in the report and no error."""
    try:
        found = json.loads(read_regular(run.environment))
    except (OSError, ValueError) as error:
        return {"unreadable": f"{run.environment.name}: {error}"}
    if not isinstance(found, dict) or not isinstance(found.get("packages", {}), dict):
        return {"unreadable": f"{run.environment.name}: its content is not what a run writes"}
    if kept not in (None, found):
        return {"unreadable": f"{run.environment.name}: it was changed since the run began"}
    return found


def leaders(
    links: Mapping[int, int | None], stored: Container[int] | None = None
) -> dict[int, int]:
    """The leader of each trial in `links`: the first stored trial with the same machine code.

    `links` maps a trial to an earlier trial with its machine code, or to None. `stored` has other
    existing trials. A trial that a link names may be missing, because it is not stored yet or was
    lost with a killed run. Then the first trial whose links lead to it is the leader.
    """
    found: dict[int, int] = {}
    for number in links:
        chain = [number]
        while (link := links.get(chain[-1])) is not None and link not in chain:
            chain.append(link)
        circle = chain[chain.index(link) :] if link is not None else chain[-1:]  # in a damaged one
        found[number] = min(circle)
    named: dict[int, int] = {}
    for number, root in found.items():
        known = root in links or (stored is not None and root in stored)
        named.setdefault(root, root if known else number)
    return {number: named[root] for number, root in found.items()}


def stored_leaders(store: RunStore) -> dict[int, int]:
    """The `leaders` of the stored duplicates. Any other trial is its own leader."""
    links = store.duplicates()
    return leaders(links, store.known(set(links.values())))


def deciding(store: RunStore, rows: int, confirmed: Collection[int]) -> tuple[set[int], int]:
    """The trials that must be read for the first `rows` rows of a leaderboard, and the number of
    rows that follow them.

    A row stands for all trials with the same machine code. Returns the trials of the `confirmed`
    rows, of the next best `rows`, and of one more, which shows whether the last row shares its
    rank. Empty if every row is confirmed.
    """
    known = stored_leaders(store)
    followers = {number for number, leader in known.items() if leader != number}
    verdicts = {known.get(number, number) for number in confirmed}
    others = followers | verdicts
    leading = (number for number in store.fittest() if number not in others)
    first = list(itertools.islice(leading, min(rows, sys.maxsize - 1) + 1))
    more = store.count_ok() - sum(store.known(others).values()) - len(first)
    chosen = {*first, *verdicts} if first else set()
    return chosen | {number for number, leader in known.items() if leader in chosen}, more
