"""Turns measurements into an outcome: a trial's fitness, its flags, and the speedup it needs.

Says also which times are hard to believe, and which no device can reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evotune.backends.base.profile import DeviceProfile
from evotune.problems.element_types import ELEMENT_BYTES
from evotune.problems.problem import Case, Problem, TensorSpec
from evotune.trial import Json, Measurement, Outcome, OutcomeKind
from evotune.verify.gate import Verdict

_SUSPICIOUS_SPEEDUP = 10.0
_NEAR_PEAK = 0.85  # of the device's peak
_OF_8_BITS = 2.0
"""Tensor cores make so many products of 8 bits in the time of one in half precision."""
_CACHED = 2.0  # an L2 cache that does not work by LRU still holds some of the rotating inputs


def is_suspicious(measurement: Measurement) -> bool:
    """Whether the speedup is hard to believe."""
    return measurement.speedup > _SUSPICIOUS_SPEEDUP


def peak_gflops(profile: DeviceProfile, tensors: Sequence[TensorSpec]) -> float:
    """The most that the device reaches on these tensors; 0 where it is unknown. A product has the
    rate of its wider side, so two inputs must have 8 bits, or the only one."""
    inputs = [spec for spec in tensors if not spec.is_output]
    narrow = sum(ELEMENT_BYTES[spec.dtype] == 1 for spec in inputs)
    return profile.peak_gflops * (_OF_8_BITS if narrow >= min(2, len(inputs)) else 1.0)


def is_near_peak(
    measurement: Measurement, flops: int, profile: DeviceProfile, tensors: Sequence[TensorSpec]
) -> bool:
    peak = peak_gflops(profile, tensors)
    return peak > 0 and _gflops(measurement, flops) > _NEAR_PEAK * peak


def impossible(
    measurement: Measurement, flops: int, profile: DeviceProfile, problem: Problem, case: Case
) -> str:
    """Why no right kernel can be so fast; "" if one can. A kernel cannot exceed the device's peak
    GFLOP/s nor, on cold inputs, the memory's peak GB/s: caches may serve some of the bytes, but not
    most."""
    gbps = problem.bytes_moved(case) / measurement.time_us / 1e3
    peak_gbps = float(profile.attributes.get("memory_gbps", 0.0))
    if measurement.cache == "cold" and peak_gbps and gbps > _CACHED * peak_gbps:
        return f"{gbps:.0f} GB/s on cold inputs is more than the memory's peak of {peak_gbps:.0f}"
    gflops, peak = _gflops(measurement, flops), peak_gflops(profile, problem.tensors(case))
    if peak and gflops > peak:
        return f"{gflops:.0f} GFLOP/s is more than the device's peak of {peak:.0f}"
    return ""


def _gflops(measurement: Measurement, flops: int) -> float:
    return flops / measurement.time_us / 1e3


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
    """0, a speedup of 1, where nothing was timed."""
    if not speedups:
        return 0.0
    return sum(math.log(max(s, 1e-12)) for s in speedups) / len(speedups)
