"""The deciding outcome of each trial, given confirmations and duplicates.

A confirmation, made in a fresh process on unseen inputs, overrules the search's own outcome.
Duplicates are the same machine code launched the same way, so one verdict holds for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from evotune.report._twins import leaders
from evotune.report.data import RunData
from evotune.trial import Outcome, Trial, worst_check


class Evidence(msgspec.Struct, frozen=True):
    """The deciding outcome of a trial.

    - `confirmation`: whether the outcome comes from a confirmation.
    - `twin`: the lowest trial number with the same code and launch; its own unless a duplicate.
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
    """The numbers of one outcome; None where it has none.

    - `speedup`, `time_us`: geometric means over the timed cases.
    - `error`: the maximum error of the check that came closest to its limit, or went beyond it.
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
    """The confirmation that holds for all trials of a machine code, by the code's first trial. A
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
    """Speedups and times of an outcome; a recorded one has a time only."""
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
    """Bounds of a valid outcome's fitness; the fitness itself where none were measured."""
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
