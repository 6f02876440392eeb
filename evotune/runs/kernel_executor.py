"""Opens the executor of a run of kernels with the run's limits, chooses its baselines, and compares
its devices.

Several devices of one model are compared before they share a search. Each device times the same
baselines and the same reference configuration, the space's default. Devices are compared by ratios
alone: baseline over candidate, both on one device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.errors import EnvironmentProblem
from evotune.problems.libraries import FAMILY, LIBRARIES
from evotune.problems.problem import Case
from evotune.runs.setup import KernelSetup
from evotune.space.document import SpaceDocument
from evotune.trial import Calibration, Outcome
from evotune.util.words import did_you_mean
from evotune.workers.build_cache import writable_cache_dir
from evotune.workers.early_worker import EarlyWorker
from evotune.workers.executor import BaselineTiming, Proposal
from evotune.workers.in_flight import Twins
from evotune.workers.local import LocalExecutor, open_local_executor


def open_kernel_executor(
    setup: KernelSetup,
    folder: Path,
    twins: Twins | None = None,
    cores: Sequence[Sequence[int]] = (),
    early: EarlyWorker | None = None,
) -> LocalExecutor:
    """Opens an executor whose compilers and workers write their logs under `folder`. `cores` binds
    each device's worker to separate CPU cores. `early` may become a worker.
    """
    document = setup.document
    return open_local_executor(
        folder=folder,
        cache=writable_cache_dir(executable=registry.named(setup.profile.backend).loads_files),
        profiles=setup.devices,
        problem=setup.problem_spec.name,
        dtype=setup.problem_spec.dtype,
        root=setup.root,
        deterministic=document.deterministic,
        compile_timeout_s=document.timeouts.compile_s,
        trial_timeout_s=document.timeouts.trial_s,
        cores=cores,
        twins=twins,
        rules=setup.planner.rules,
        secret=setup.secret,
        early=early,
    )


def chosen_baseline(document: SpaceDocument, case: Case, timings: Sequence[BaselineTiming]) -> str:
    """The name of the baseline that the space chooses for a case. `family:best` is the fastest of
    the family whose results pass the gate, `best` the fastest of all; `library` is the family of
    optional libraries. Raises SpaceError if the case has no such baseline on this device, with the
    reason why each one is left out."""
    usable = [t for t in timings if t.case == case.label and t.passed]
    family, _, member = document.baseline.partition(":")
    if member == "best" and family == FAMILY:
        usable = [t for t in usable if t.name in LIBRARIES]
    elif member == "best":
        usable = [t for t in usable if t.name.startswith(f"{family}:")]
    elif family != "best":
        usable = [t for t in usable if t.name == document.baseline]
    if not usable:
        reasons = [
            t.reason or f"{t.name}: its outputs are not within the limits of the gate"
            for t in timings
            if t.case == case.label and not t.passed
        ]
        names = sorted({t.name for t in timings if t.case == case.label and t.passed})
        raise document.baseline_position.error(
            f"no baseline {document.baseline!r} for {case.label} on this device; "
            f"it has {', '.join(names) or 'none that fits its memory and is correct'}"
            + "".join(f"; {reason}" for reason in reasons)
        )
    return min(usable, key=lambda t: t.time_us).name


def require_baseline(document: SpaceDocument, names: Sequence[str]) -> None:
    """Raises SpaceError if the space's `baseline:` names neither a baseline of the problem nor the
    best of a family. Accepts anything if no `names` are known."""
    families = {name.partition(":")[0] for name in names if ":" in name}
    if LIBRARIES.keys() & set(names):
        families.add(FAMILY)
    known = {*names, "best", *(f"{family}:best" for family in families)}
    if names and document.baseline not in known:
        hint = did_you_mean(document.baseline, known)
        message = f"unknown baseline {document.baseline!r}{hint}"
        raise document.baseline_position.error(message)


def calibrate(
    executor: LocalExecutor, reference: Proposal, cases: Sequence[Case]
) -> list[Calibration]:
    """A calibration for each device: the chosen baselines' times, and the speedup of the
    `reference` configuration.
    """
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
