"""Gathers evidence of a run's candidates and baselines, on its device or without it, and stores it.

Machine code comes from the build cache or is compiled again, so the static view needs no device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from evotune.backends import registry
from evotune.backends.base.evidence import (
    FACT,
    BaselineRequest,
    EvidenceRequest,
    GatheredEvidence,
    Work,
    merged,
    read_gathered,
)
from evotune.backends.base.launch import Binary
from evotune.backends.registry import measuring_alone
from evotune.errors import EnvironmentProblem, EvotuneError
from evotune.problems.problem import Case, index_bytes
from evotune.runs.compiling import build_jobs
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.store import RunStore
from evotune.trial import Configuration, Value
from evotune.workers.device_slot import ProblemSource
from evotune.workers.executor import TIMED, CaseJob
from evotune.workers.in_flight import review_build


@runtime_checkable
class CountsExponentials(Protocol):
    """A problem that says how many exponentials every algorithm must compute."""

    def count_exponentials(self, case: Case) -> int: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """A reopened run. `away`: why its device is not present; "" if it is."""

    reopened: ReopenedRun
    away: str

    @classmethod
    def to(cls, run: RunFolder) -> Access:
        """Opens the run for its device, or without one if the device is absent. Raises the errors
        of `ReopenedRun.load`."""
        try:
            reopened = ReopenedRun.load(run)
        except EnvironmentProblem as error:
            return cls(ReopenedRun.load(run, anywhere=True), str(error))
        if reopened.away:
            return cls(ReopenedRun.load(run, anywhere=True), reopened.away)
        return cls(reopened, "")

    def timed_job(self, configuration: Mapping[str, Value], label: str = "") -> CaseJob:
        """The job of the case with this label, or of the first timed case. Raises EvotuneError if
        the configuration cannot run."""
        proposal = self.reopened.planner.proposal(0, Configuration(configuration))
        jobs = [job for job in proposal.cases if job.role == TIMED]
        if not jobs:
            raise EvotuneError(f"the configuration cannot run: {proposal.rejection}")
        return next((job for job in jobs if job.case.label == label), jobs[0])

    def work_of(self, job: CaseJob) -> Work:
        problem = self.reopened.planner.problem
        counted = (
            problem.count_exponentials(job.case) if isinstance(problem, CountsExponentials) else 0
        )
        return Work(
            operations=job.flops,
            bytes_moved=problem.bytes_moved(job.case),
            exponentials=counted,
        )

    def gather(self, configuration: Configuration, label: str = "") -> GatheredEvidence:
        """The evidence of a configuration on one case. Raises EvotuneError if it does not
        compile."""
        setup = self.reopened.setup
        backend = registry.named(setup.profile.backend)
        if self.away and not backend.models():
            raise EvotuneError("the compiler's code is for the device at hand, not for the run's")
        job = self.timed_job(configuration, label)
        built = build_jobs([job.compile], setup.document.timeouts.compile_s)[job.compile.key]
        if not isinstance(built, Binary):
            raise EvotuneError(f"the configuration does not compile: {built.reason}")
        proposal = dataclasses.replace(
            self.reopened.planner.proposal(0, configuration), cases=(job,)
        )
        review = review_build(proposal, {job.compile.key: built}, setup.planner.rules)
        request = EvidenceRequest(
            profile=setup.profile,
            dtype=setup.problem_spec.dtype,
            binary=built.path,
            plan=job.plan.completed(built.resources),
            tensors=tuple(setup.planner.problem.tensors(job.case)),
            indices=index_bytes(setup.planner.problem, job.case),
            resources=built.resources,
            compile=job.compile,
            without=frozenset({"counters"}) if self.away else frozenset(),
        )
        with measuring_alone(() if self.away else setup.devices):
            evidence = backend.gather_evidence(request)
        numbers = {n: v for n, v in review.resources.items() if isinstance(v, (int, float))}
        return GatheredEvidence(
            case=job.case.label,
            date=_now(),
            work=self.work_of(job),
            evidence=evidence,
            configuration=configuration.to_json(),
            resources=numbers,
        )

    def gather_baseline(self, configuration: Configuration, label: str = "") -> GatheredEvidence:
        """The evidence of the baseline against which a configuration is measured, on one case."""
        setup = self.reopened.setup
        job = self.timed_job(configuration, label)
        name = self.reopened.baselines.get(job.case.label, "")
        spec = setup.problem_spec
        told = ProblemSource(spec.name, spec.dtype, setup.root).told()
        request = BaselineRequest(
            profile=setup.profile,
            problem=spec.name,
            dtype=spec.dtype,
            case=job.case,
            baseline=name,
            root=str(setup.root),
            sha256=told.sha256,
        )
        backend = registry.named(setup.profile.backend)
        with measuring_alone(setup.devices):
            evidence = backend.gather_baseline_evidence(request)
        return GatheredEvidence(
            case=job.case.label,
            date=_now(),
            work=self.work_of(job),
            evidence=evidence,
            baseline=name,
        )


def kept_evidence(run: RunFolder) -> tuple[GatheredEvidence, ...]:
    """The evidence in a run's store. Raises StoreError if it is damaged."""
    with RunStore.open_for_reading(run.store) as store, store.trusting_facts():
        return read_gathered(store.meta(FACT))


def keep_evidence(run: RunFolder, new: Iterable[GatheredEvidence]) -> None:
    """Stores evidence in the run. It replaces older evidence of the same subjects. Raises RunLocked
    while another process works on the run."""
    with run.locked(), RunStore.open_for_writing(run.store) as store:
        kept = list(read_gathered(store.meta(FACT)))
        for item in new:
            kept = merged(kept, item)
        store.set_meta(FACT, [item.to_json() for item in kept])


def gathered_or_reason(gather: Callable[[], GatheredEvidence]) -> GatheredEvidence | str:
    """The evidence, or a line that says why there is none."""
    try:
        return gather()
    except EvotuneError as error:
        return str(error)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
