"""Ranks trials: confirmed champions first, ties named, duplicates merged with their twin.

The rank depends on the deciding outcome of each trial. A confirmation, made in a fresh process on
unseen inputs, overrules the search's own outcome. Duplicates are the same machine code launched the
same way, so one verdict holds for all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from evotune.report.data import RunData, leaders
from evotune.trial import Configuration, Measurement, Outcome, Trial, worst_check


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the leaderboard: one machine code with its rank. `duplicates`: the other trials with
    the same code."""

    rank: int
    tied: bool
    number: int
    configuration: Configuration
    outcome: Outcome
    confirmed: bool
    figures: Figures
    duplicates: tuple[int, ...] = ()
    model: str = ""
    """The model of the device, if the run had several models. Ranks count within a model."""

    @property
    def place(self) -> str:
        """The rank as text; `1=` if it is shared."""
        return f"{self.rank}=" if self.tied else str(self.rank)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Findings that do not disqualify: a valid outcome's failed checks (racecheck's)."""
        failed = (check for check in self.outcome.checks if check.status == "failed")
        return tuple(f"{check.inputs}: {check.detail}" for check in failed)

    @property
    def timed(self) -> tuple[Measurement, ...]:
        """The measurements of the cases that make the fitness."""
        return tuple(m for m in self.outcome.measurements if m.counts)


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The ranked trials of a run. `rows`: in rank order. `disqualified`: trials that were valid in
    the search but not when confirmed."""

    rows: tuple[Row, ...]
    disqualified: tuple[Evidence, ...]


def rank(data: RunData, evidence: Mapping[int, Evidence] | None = None) -> Leaderboard:
    """Ranks confirmed rows by the lower bound of their interval, then the others by fitness.

    Rows share a rank while their interval overlaps the interval of the group's first row. Device
    models are ranked separately; the model of the run's first device comes first.
    """
    known = weigh(data) if evidence is None else evidence
    groups: dict[int, list[Evidence]] = {}
    for item in known.values():
        groups.setdefault(item.twin, []).append(item)
    leaders = [known[twin] for twin in groups]
    own = data.facts.device.name
    by_model: dict[str, list[Evidence]] = {own: []}
    for leader in sorted((leader for leader in leaders if leader.outcome.ok), key=_order):
        by_model.setdefault(leader.outcome.device_model or own, []).append(leader)
    mixed = sum(map(bool, by_model.values())) > 1
    rows: list[Row] = []
    for model, ranked in by_model.items():
        rows += _rows(data, ranked, groups, model if mixed else "")
    return Leaderboard(tuple(rows), tuple(leader for leader in leaders if leader.disqualified))


def _rows(
    data: RunData, ranked: Sequence[Evidence], groups: Mapping[int, list[Evidence]], model: str
) -> list[Row]:
    ranks = ranks_of(interval(leader.outcome) for leader in ranked)
    shared = Counter(ranks)
    return [
        Row(
            rank=place,
            tied=shared[place] > 1,
            number=leader.trial.number,
            configuration=leader.trial.configuration,
            outcome=leader.outcome,
            confirmed=leader.confirmed,
            figures=figures(leader.outcome, recorded=data.recorded),
            duplicates=tuple(
                item.trial.number
                for item in groups[leader.twin]
                if item.trial.number != leader.trial.number
            ),
            model=model,
        )
        for place, leader in zip(ranks, ranked, strict=True)
    ]


def _order(item: Evidence) -> tuple[bool, float, float, int]:
    fitness = item.outcome.fitness or 0.0
    first = interval(item.outcome)[0]
    return sort_key(item.confirmed, fitness, first, item.trial.number)


def sort_key(
    confirmed: bool, fitness: float, low: float, number: int
) -> tuple[bool, float, float, int]:
    """Sort key of the rows; `low` is the lower bound of the fitness."""
    return (not confirmed, -low if confirmed else -fitness, -fitness, number)


def ranks_of(intervals: Iterable[tuple[float, float]]) -> list[int]:
    """The ranks of fitness intervals in the rows' order, as in sport: after two firsts comes a
    third."""
    ranks: list[int] = []
    leader = (math.nan, math.nan)  # overlaps nothing
    for place, (low, high) in enumerate(intervals, start=1):
        if low <= leader[1] and leader[0] <= high:
            ranks.append(ranks[-1])
        else:
            leader = (low, high)
            ranks.append(place)
    return ranks


class Evidence(msgspec.Struct, frozen=True):
    """The deciding outcome of a trial.

    - `confirmation`: whether the outcome comes from a confirmation.
    - `twin`: the lowest number of a trial with the same code and launch; the trial's own number if
      it is the first.
    - `finished_s`: seconds from the run's start, pauses left out; None if not known.
    """

    trial: Trial
    outcome: Outcome
    confirmation: bool
    twin: int
    finished_s: float | None = None

    @property
    def confirmed(self) -> bool:
        return self.confirmation and self.outcome.ok

    @property
    def disqualified(self) -> bool:
        """True if the search found it valid and the confirmation did not."""
        return self.confirmation and not self.outcome.ok

    @property
    def reason(self) -> str:
        text = self.outcome.reason
        return f"in confirmation: {text or self.outcome.kind}" if self.disqualified else text


class Figures(msgspec.Struct, frozen=True):
    """The numbers of one outcome; None if it has none.

    - `speedup`, `time_us`: geometric means over the timed cases.
    - `error`: the maximum error of the check that came closest to its limit, or exceeded it.
    - `error_limit`: that check's limit.
    - `rounding`: see `Check`.
    """

    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    time_us: float | None
    error: float | None
    error_limit: float | None
    rounding: bool = False


def weigh(data: RunData) -> dict[int, Evidence]:
    """Evidence for every trial, by number in proposal order."""
    twins = leaders({trial.number: trial.outcome.duplicate_of for trial in data.trials})
    verdicts = verdicts_by_twin(data.confirmations, twins)
    return {
        trial.number: judge(trial, twin, verdicts.get(twin), data.finish_times_s.get(trial.number))
        for trial in data.trials
        for twin in (twins[trial.number],)
    }


def verdicts_by_twin(
    confirmations: Mapping[int, Outcome], twins: Mapping[int, int]
) -> dict[int, Outcome]:
    """For each machine code, by its first trial, the confirmation that holds for all its trials. A
    trial that is not in `twins` has no duplicate."""
    verdicts: dict[int, Outcome] = {}
    for number, outcome in sorted(confirmations.items()):
        twin = twins.get(number, number)
        known = verdicts.get(twin)
        if known is None or (known.ok and not outcome.ok):  # a failure overrules
            verdicts[twin] = outcome
    return verdicts


def judge(
    trial: Trial, twin: int, verdict: Outcome | None, finished_s: float | None = None
) -> Evidence:
    """The trial's evidence. `verdict` is the confirmation that holds for its machine code."""
    if verdict is None or not trial.outcome.ok:
        return Evidence(trial, trial.outcome, False, twin, finished_s)
    return Evidence(trial, verdict, True, twin, finished_s)


def figures(outcome: Outcome, *, recorded: bool = False) -> Figures:
    """The figures of an outcome. A recorded one has only a time."""
    check = worst_check(outcome.checks) if outcome.checks else None
    time_us = outcome.recorded_time_us if recorded else _mean_time_us(outcome)
    speedup = low = high = None
    if outcome.fitness is not None and not recorded:
        speedup = _exp(outcome.fitness)
        low, high = map(_exp, interval(outcome))
    if check is None:
        return Figures(speedup, low, high, time_us, None, None)
    return Figures(speedup, low, high, time_us, check.max_error, check.max_limit, check.rounding)


def interval(outcome: Outcome) -> tuple[float, float]:
    """The bounds of a valid outcome's fitness, or the fitness itself if no bounds were measured."""
    assert outcome.fitness is not None
    low, high = outcome.fitness_low, outcome.fitness_high
    return (outcome.fitness if low is None else low, outcome.fitness if high is None else high)


def _mean_time_us(outcome: Outcome) -> float | None:
    times = [m.time_us for m in outcome.measurements if m.counts and m.time_us > 0]
    if not times or not outcome.ok:
        return None
    return math.exp(sum(math.log(time) for time in times) / len(times))


def _exp(fitness: float) -> float:
    try:
        return math.exp(fitness)
    except OverflowError:
        return math.inf
