"""Makes one figure from the timings of several processes, because the same code differs from
process to process.

The operating system places a process's memory and threads once, and that place moves times by more
than samples within the process show. So a champion's reported figures come from several processes.
The interval is that of their mean, by Student's t over the processes, and never narrower than the
intervals within the processes allow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from evotune.trial import Calibration, Measurement, Outcome

LEAST, MOST = 3, 6
"""The least and the greatest number of processes. An interval needs three. With six processes its
half-width is 1.05 standard deviations, and more processes make little difference."""
SETTLED = 0.01
"""Half-width of an interval at which no more processes are started."""
NOISY = 0.10
"""Allowed relative difference between processes of the same code; more is flagged."""
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t, two-sided, for 1 to 9 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class LogInterval:
    """A mean of logarithms with its 95% bounds."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def interval_of(logs: Sequence[float], within: Sequence[float], least: float = 0.0) -> LogInterval:
    """The interval of the mean of ln speedups, one for each process. `within` holds the half-width
    of each process's own interval; `least` is the least half-width of the result."""
    count = len(logs)
    mean = statistics.fmean(logs)
    alone = math.sqrt(statistics.fmean([half * half for half in within]) / count)
    alone = max(alone, least)
    if count == 1:
        return LogInterval(mean, mean - alone, mean + alone)
    half = max(_T95[count - 2] * statistics.stdev(logs) / math.sqrt(count), alone)
    return LogInterval(mean, mean - half, mean + half)


def fitness_by_process(outcome: Outcome) -> list[float]:
    """Mean ln speedup in each process of an outcome; empty if there was one process."""
    rows = [[math.log(s) for s in m.processes] for m in outcome.measurements if m.counts]
    return [statistics.fmean(each) for each in zip(*rows, strict=True)]


def spread_factor(fitnesses: Sequence[float]) -> float:
    """The half-width, in ln, of the 95% interval around the figure of a single process, if that
    process differs from others as much as those with `fitnesses` differ among themselves."""
    return _T95[len(fitnesses) - 2] * statistics.stdev(fitnesses)


def widened(outcome: Outcome, fitnesses: Sequence[float], least: float = 0.0) -> Outcome:
    """The outcome of one process, with the intervals of its fitness and cases widened by the spread
    of other processes, which ran similar code and reached `fitnesses`. `least`: see `interval_of`.
    """
    if len(fitnesses) < 2:
        return outcome
    factor = max(least, spread_factor(fitnesses))

    def wider(low: float, middle: float, high: float) -> tuple[float, float]:
        return middle - math.hypot(middle - low, factor), middle + math.hypot(high - middle, factor)

    assert outcome.fitness is not None
    assert outcome.fitness_low is not None
    assert outcome.fitness_high is not None
    low, high = wider(outcome.fitness_low, outcome.fitness, outcome.fitness_high)
    measurements = tuple(_widened(m, factor) for m in outcome.measurements)
    return msgspec.structs.replace(
        outcome, fitness_low=low, fitness_high=high, measurements=measurements
    )


def _widened(measured: Measurement, factor: float) -> Measurement:
    low = math.log(measured.speedup / measured.speedup_low)
    high = math.log(measured.speedup_high / measured.speedup)
    return msgspec.structs.replace(
        measured,
        speedup_low=measured.speedup * math.exp(-math.hypot(low, factor)),
        speedup_high=measured.speedup * math.exp(math.hypot(high, factor)),
    )


def combined(outcomes: Sequence[Outcome], least: float = 0.0) -> Outcome:
    """The first outcome with the figures of all outcomes: each case's speedup, and the fitness.
    Intervals cover the spread between processes, and at least `least` to either side. All outcomes
    must be `ok`."""
    first = outcomes[0]
    if len(outcomes) == 1:
        return first
    fitnesses = [_known(each.fitness) for each in outcomes]
    fitness = interval_of(
        fitnesses,
        [(_known(each.fitness_high) - _known(each.fitness_low)) / 2 for each in outcomes],
        least,
    )
    flags = tuple(dict.fromkeys(flag for each in outcomes for flag in each.flags))
    if spread(fitnesses) > NOISY and fitness.half_width > NOISY / 2:
        flags = (*flags, TOO_NOISY)
    return msgspec.structs.replace(
        first,
        fitness=fitness.mean,
        fitness_low=fitness.low,
        fitness_high=fitness.high,
        flags=flags,
        measurements=tuple(_of_case(m, outcomes, fitnesses, least) for m in first.measurements),
        stage_s={
            **first.stage_s,
            "repeat": sum(sum(each.stage_s.values()) for each in outcomes[1:]),
        },
    )


TOO_NOISY = "too_noisy"
"""Flag of an outcome: the same code differed too much between processes to be certain."""


def spread(fitnesses: Sequence[float]) -> float:
    """The relative difference between the speedups of the best and the worst process; 0 for one
    process."""
    return math.exp(max(fitnesses) - min(fitnesses)) - 1 if fitnesses else 0.0


def _of_case(
    measured: Measurement, outcomes: Sequence[Outcome], fitnesses: Sequence[float], least: float
) -> Measurement:
    same = [
        m
        for each in outcomes
        for m in each.measurements
        if (m.case, m.cache, m.held_out) == (measured.case, measured.cache, measured.held_out)
    ]
    if len(same) == 1:  # held out, or cold: taken once
        return _widened(measured, max(least, spread_factor(fitnesses)))
    found = interval_of(
        [math.log(m.speedup) for m in same],
        [math.log(m.speedup_high / m.speedup_low) / 2 for m in same],
        least,
    )
    return msgspec.structs.replace(
        measured,
        time_us=statistics.median(m.time_us for m in same),
        time_min_us=min(m.time_min_us for m in same),
        baseline_us=statistics.median(m.baseline_us for m in same),
        speedup=math.exp(found.mean),
        speedup_low=math.exp(found.low),
        speedup_high=math.exp(found.high),
        samples=sum(m.samples for m in same),
        processes=tuple(m.speedup for m in same),
    )


def _known(value: float | None) -> float:
    assert value is not None
    return value


# Compares the devices that share a run, by their calibrations.
#
# `runs/kernel_executor.py` keeps a calibration of each device: its id and model, the baselines'
# times in microseconds by case, and the reference configuration's speedup with its interval.
_AGREE: Final = 0.02


def devices_spread(devices: Sequence[Calibration], model: str) -> float | None:
    """The relative difference between devices of one model on the reference configuration; None if
    the configuration has no speedup on one of them."""
    speedups = [device.speedup for device in devices if device.model == model]
    known = [speedup for speedup in speedups if speedup is not None]
    return max(known) / min(known) - 1 if len(known) == len(speedups) else None


def agreement(devices: Sequence[Calibration]) -> str:
    """The `devices_spread` of each model, in words."""
    words = []
    for model in dict.fromkeys(device.model for device in devices):
        count = sum(device.model == model for device in devices)
        apart = devices_spread(devices, model)
        if apart is None:
            why = "the default configuration does not run there"
            words.append(f"{count} x {model}: not calibrated, since {why}")
            continue
        line = f"{count} x {model}: {apart:.1%} apart on the reference configuration"
        words.append(f"{line} (expected: {_AGREE:.0%} at most)" if apart > _AGREE else line)
    return "; ".join(words)


def baseline_factor(device: Calibration, first: Calibration) -> float | None:
    """The speed of the device relative to `first` on the baselines, as a geometric mean over the
    cases that both timed; None if there is no such case."""
    ratios = [
        math.log(first.baseline_us[case] / time_us)
        for case, time_us in device.baseline_us.items()
        if case in first.baseline_us
    ]
    return math.exp(sum(ratios) / len(ratios)) if ratios else None
