"""Turns measurements into an outcome: a trial's fitness, its flags, and the speedup it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evotune.trial import Json, Measurement, Outcome, OutcomeKind
from evotune.verify.gate import Verdict

_SUSPICIOUS_SPEEDUP = 10.0


def is_suspicious(measurement: Measurement) -> bool:
    """Whether the speedup is hard to believe."""
    return measurement.speedup > _SUSPICIOUS_SPEEDUP


def needed_speedup(contender: float, timed: int, measured: Sequence[Measurement]) -> float:
    """The speedup that the last timed case must reach so that the mean over all `timed` cases
    reaches `contender` (a mean of ln speedup). For the cases before it 0: nothing is known yet."""
    measured = [m for m in measured if m.counts]
    if len(measured) != timed - 1:
        return 0.0
    so_far = sum(math.log(m.speedup_high) for m in measured)
    return math.exp(min(timed * contender - so_far, 100.0))


def outcome_of(
    verdict: Verdict,
    measurements: list[Measurement],
    stage_s: dict[str, float],
    state: Mapping[str, Json],
) -> Outcome:
    resources = {"device": dict(state)}
    if verdict.kind is not None:
        return Outcome(
            verdict.kind,
            reason=verdict.reason,
            checks=tuple(verdict.checks),
            stage_s=stage_s,
            resources=resources,
        )
    timed = [m for m in measurements if m.counts]
    flags = {
        "suspicious": any(map(is_suspicious, measurements)),
        "throttled": any(m.throttled for m in measurements),
        "racecheck": any(check.status == "failed" for check in verdict.checks),
    }
    return Outcome(
        OutcomeKind.OK,
        fitness=_mean_log([m.speedup for m in timed]),
        fitness_low=_mean_log([m.speedup_low for m in timed]),
        fitness_high=_mean_log([m.speedup_high for m in timed]),
        flags=tuple(name for name, holds in flags.items() if holds),
        measurements=tuple(measurements),
        checks=tuple(verdict.checks),
        stage_s=stage_s,
        resources=resources,
    )


def _mean_log(speedups: Sequence[float]) -> float:
    return sum(math.log(max(s, 1e-12)) for s in speedups) / len(speedups)
