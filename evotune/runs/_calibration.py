"""Compares several devices of one model before they share a search.

Each device times the same baselines and the same reference configuration, the space's default.
Devices are compared by ratios alone: baseline over candidate, both on one device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from evotune.errors import EnvironmentProblem
from evotune.problems.libraries.library_catalog import LIBRARIES
from evotune.problems.problem import Case
from evotune.trial import Json, Outcome
from evotune.workers.executor import Proposal
from evotune.workers.local import LocalExecutor


def calibrate(
    executor: LocalExecutor, reference: Proposal, cases: Sequence[Case]
) -> list[dict[str, Json]]:
    """One entry a device: its id, its model, the chosen baselines' times in µs by case, and the
    reference's speedup with its interval (None, with the reason, when it failed)."""
    count = len(executor.devices)
    baselines = [_baseline_us(executor, cases, index) for index in range(count)]
    for index in range(count):
        executor.submit(dataclasses.replace(reference, number=-1 - index, device=index))
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < count:
        outcomes.update(executor.poll(0.5))
    return [
        {
            "id": profile.id,
            "model": profile.name,
            "baseline_us": baselines[index],
            **_speedups(outcomes[-1 - index]),
        }
        for index, profile in enumerate(executor.devices)
    ]


def _baseline_us(executor: LocalExecutor, cases: Sequence[Case], index: int) -> dict[str, Json]:
    chosen = executor.baselines
    libraries = sorted(LIBRARIES.keys() & set(chosen.values()))
    timings = executor.time_baselines(cases, libraries, index).timings
    if refused := [t for t in timings if t.reason and t.name == chosen[t.case]]:
        device, why = executor.devices[index].id, refused[0].reason
        raise EnvironmentProblem(f"the baseline of {refused[0].case} fails on {device}: {why}")
    return {t.case: t.time_us for t in timings if t.name == chosen[t.case]}


def _speedups(outcome: Outcome) -> dict[str, Json]:
    names = {"speedup": "fitness", "speedup_low": "fitness_low", "speedup_high": "fitness_high"}
    found: dict[str, Json] = {"reason": outcome.reason or outcome.kind.value}
    for name, field in names.items():
        value = getattr(outcome, field)
        found[name] = None if value is None else math.exp(value)
    return found
