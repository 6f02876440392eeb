"""Compares several devices of one model before they share a search.

Each device times the same baselines and the same reference configuration, the space's default.
Devices are compared by ratios alone: baseline over candidate, both on one device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from evotune.backends.base.launch import DeviceProfile
from evotune.errors import EnvironmentProblem
from evotune.problems.libraries import LIBRARIES
from evotune.problems.problem import Case
from evotune.trial import Calibration, Outcome
from evotune.workers.executor import Proposal
from evotune.workers.local import LocalExecutor


def calibrate(
    executor: LocalExecutor, reference: Proposal, cases: Sequence[Case]
) -> list[Calibration]:
    """One a device, from the chosen baselines' times and the speedup of the reference."""
    count = len(executor.devices)
    baselines = [_baseline_us(executor, cases, index) for index in range(count)]
    for index in range(count):
        executor.submit(dataclasses.replace(reference, number=-1 - index, device=index))
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < count:
        outcomes.update(executor.poll(0.5))
    return [
        _calibration(profile, baselines[index], outcomes[-1 - index])
        for index, profile in enumerate(executor.devices)
    ]


def _baseline_us(executor: LocalExecutor, cases: Sequence[Case], index: int) -> dict[str, float]:
    chosen = executor.baselines
    libraries = sorted(LIBRARIES.keys() & set(chosen.values()))
    timings = executor.time_baselines(cases, libraries, index).timings
    if refused := [t for t in timings if t.reason and t.name == chosen[t.case]]:
        device, why = executor.devices[index].id, refused[0].reason
        raise EnvironmentProblem(f"the baseline of {refused[0].case} fails on {device}: {why}")
    return {t.case: t.time_us for t in timings if t.name == chosen[t.case]}


def _calibration(
    profile: DeviceProfile, baseline_us: Mapping[str, float], reference: Outcome
) -> Calibration:
    def speedup(fitness: float | None) -> float | None:
        return None if fitness is None else math.exp(fitness)

    return Calibration(
        id=profile.id,
        model=profile.name,
        baseline_us=baseline_us,
        reason=reference.reason or reference.kind.value,
        speedup=speedup(reference.fitness),
        speedup_low=speedup(reference.fitness_low),
        speedup_high=speedup(reference.fitness_high),
    )
