"""A champion's checks beyond the gate: launches at sizes that a package could serve, disturbed
launches, and NVIDIA's compute-sanitizer tools.

The tools, and the compilers of disturbed builds, are separate processes. They need seconds, so they
start first and run in parallel with the other checks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from evotune.backends import registry
from evotune.backends.base.backend import SanitizedCase, not_sanitized
from evotune.backends.base.launch import CompileJob, DeviceProfile
from evotune.backends.base.session import Session
from evotune.problems.problem import Case, Problem, index_bytes
from evotune.trial import Check, Domain
from evotune.util.files import scratch_folder
from evotune.verify.champion_launches import (
    CASE,
    WORDS,
    PerturbedLaunches,
    launch_aligned,
    launch_served,
)
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.kept_checks import ALL_KINDS, checked_domain
from evotune.verify.pool import InputPool
from evotune.workers.executor import EDGE, SERVED, TIMED, WHEN_THERE_IS_TIME
from evotune.workers.messages import TrialCase, TrialRequest

_PERTURBED_S = 2.0
_REBUILD_S = 10.0
NO_TIME = "confirming may take no longer"
_TOGETHER = 16  # launches; a GPU computes while the next one is prepared


Rebuilt: TypeAlias = "tuple[str, list[Subject] | str]"
"""How a build disturbs itself, and the cases with its code, or the reason why it cannot be used."""


@dataclass(frozen=True)
class Beside:
    """Work on a champion in other processes, which started before the champion's checks."""

    judge: Callable[[Verdict, float], bool]
    """Waits at most so many seconds for the tools, and adds their checks to the verdict. A finding
    fails the candidate or is a warning, as the backend's `disqualification` says. Returns False if
    the tools did not end; then their checks are skipped."""
    rebuilt: Mapping[CompileJob, Callable[[], Mapping[str, Path | str]]]
    """Waits for the builds of a job that disturb themselves; see `Backend.rebuilt`."""


class ChampionChecks:
    """The checks of champions that a worker makes after the gate."""

    def __init__(
        self,
        session: Session,
        profile: DeviceProfile,
        problem: Problem,
        gate: Gate,
        pool: InputPool,
        *,
        deterministic: bool,
    ) -> None:
        self._session = session
        self._backend = registry.named(profile.backend)
        self._profile = profile
        self._problem = problem
        self._gate = gate
        self._pool = pool
        self._deterministic = deterministic

    def launch_aligned(
        self,
        subjects: Sequence[tuple[TrialCase, Subject]],
        seed: int,
        verdict: Verdict,
        stages: Stages,
    ) -> None:
        """Launches each checked case on inputs with the least alignment that a package serves."""
        chosen = [each for item, each in subjects if item.role not in WHEN_THERE_IS_TIME]
        launch_aligned(
            *(self._gate, chosen, self._problem.input_kinds[0], seed, verdict),
            begins=lambda number: stages.at(f"{WORDS}, case", number, len(chosen)),
        )

    def launch_served(  # noqa: PLR0917
        self,
        subjects: Sequence[tuple[TrialCase, Subject]],
        seed: int,
        verdict: Verdict,
        stages: Stages,
        without: Collection[str],
        limit_s: float,
    ) -> list[Case]:
        """Launches at the sizes that a package could serve, for at most `limit_s` of work; returns
        the cases that passed."""
        chosen = [subject for item, subject in subjects if item.role == SERVED]
        made = launch_served(
            *(self._gate, self._problem, chosen, seed, verdict),
            limit_s=limit_s,
            longest_s=stages.left_s(),
            together=_TOGETHER if self._session.in_order else 1,
            without=without,
            begins=lambda number: stages.at("served sizes", number, len(chosen)),
        )
        stages.cut_short |= len(made) < len(chosen) and stages.is_late()
        return made

    def domain(self, job: TrialRequest, tested: Sequence[Case]) -> Domain:
        """The domain of a champion that passed. A case that is checked only if there is time counts
        if it is among the `tested` ones."""
        labels = {case.label for case in tested}
        checked = [
            (item.binary, item.case)
            for item in job.cases
            if item.role not in WHEN_THERE_IS_TIME or item.case.label in labels
        ]
        by_length = {each.binary for each in job.cases if each.role == SERVED}
        return checked_domain(self._problem, checked, self._profile, job.lengths, by_length)

    @contextlib.contextmanager
    def beside(
        self, cases: Sequence[TrialCase], *, sanitize: bool, disturb: bool
    ) -> Iterator[Beside]:
        """Starts the work in other processes. It ends when the block ends, if not before."""
        disturb = disturb and self._deterministic and bool(self._session.perturbations())
        jobs = {item.compile: None for item in cases if item.role == TIMED and item.compile}
        with contextlib.ExitStack() as stack:
            judge = stack.enter_context(self._sanitizing(cases)) if sanitize else _no_tools
            rebuilt = stack.enter_context(self._rebuilding(jobs if disturb else ()))
            yield Beside(judge, rebuilt)

    def _sanitized(self, item: TrialCase) -> SanitizedCase:
        specs = tuple(self._problem.tensors(item.case))
        return SanitizedCase(item.binary, item.plan, specs, index_bytes(self._problem, item.case))

    @contextlib.contextmanager
    def _rebuilding(
        self, jobs: Iterable[CompileJob]
    ) -> Iterator[Mapping[CompileJob, Callable[[], Mapping[str, Path | str]]]]:
        jobs = list(jobs)
        if not jobs:
            yield {}
            return
        with contextlib.ExitStack() as stack:
            folders = [stack.enter_context(scratch_folder()) for _ in jobs]
            pool = stack.enter_context(ThreadPoolExecutor(len(jobs)))
            yield {
                job: pool.submit(self._backend.rebuilt, job, folder, _REBUILD_S).result
                for job, folder in zip(jobs, folders, strict=True)
            }

    @contextlib.contextmanager
    def _sanitizing(self, cases: Sequence[TrialCase]) -> Iterator[Callable[[Verdict, float], bool]]:
        edges = [item for item in cases if item.role == EDGE]
        launched = [self._sanitized(item) for item in edges]
        noted = [item.mbarriers for item in edges]
        mbarriers = None if None in noted else any(noted)
        self._session.free()  # each tool is a process with a context of its own
        # The thread ends with the tools, which end with their block.
        with ThreadPoolExecutor(1) as waiting, contextlib.ExitStack() as block:
            tools = block.enter_context(self._backend.sanitizing(launched))

            def judge(verdict: Verdict, limit_s: float) -> bool:
                running = waiting.submit(tools)
                try:
                    checks = running.result(None if math.isinf(limit_s) else limit_s)
                except TimeoutError:
                    block.close()
                    verdict.checks += not_sanitized(NO_TIME)
                    return False
                verdict.checks += checks
                for check in checks:
                    kind = self._backend.disqualification(check, mbarriers=mbarriers)
                    if kind is not None and verdict.passed:
                        verdict.kind = kind
                        verdict.reason = f"{check.inputs}, {check.case}: {check.detail}"
                return True

            yield judge

    def leave_undisturbed(self, verdict: Verdict, late: bool) -> bool:
        """Whether to leave out disturbed launches because it is too `late`; if so, adds a skipped
        check to the verdict."""
        if late and self._session.perturbations() and verdict.passed:
            verdict.checks.append(Check(CASE, ALL_KINDS, "skipped", detail=NO_TIME))
        return late

    def disturb(
        self,
        timed: Sequence[Subject],
        seed: int,
        verdict: Verdict,
        loaded: Sequence[Rebuilt],
    ) -> None:
        """Launches the timed cases, disturbed in every way that the session has, and checks the
        results. Then launches the same kernels in builds that disturb themselves."""
        if not self._session.perturbations():
            return
        if not self._deterministic:
            why = "results need not be the same bits twice"
            verdict.checks.append(Check(CASE, ALL_KINDS, "skipped", detail=why))
            return
        launches = PerturbedLaunches(self._session, self._gate, self._pool, seed)
        launches.check(timed, verdict, limit_s=_PERTURBED_S)
        ways = len({way for way, _ in loaded})
        for way, alike in loaded:
            if not verdict.passed:
                return
            if isinstance(alike, str):
                verdict.checks.append(Check(CASE, way, "skipped", detail=alike))
            else:
                launches.check_rebuilt(way, alike, verdict, limit_s=_PERTURBED_S / ways)

    def load_rebuilt(
        self, timed: Sequence[Subject], cases: Sequence[TrialCase], beside: Beside
    ) -> list[Rebuilt]:
        """The timed cases with the builds that disturb themselves, or the reason why a build cannot
        be used. Loading a build takes the driver's assembler half a second."""
        jobs = [item.compile for item in cases if item.role == TIMED]
        found: list[Rebuilt] = []
        for job, rebuilt in beside.rebuilt.items():
            alike = [s for s, own in zip(timed, jobs, strict=True) if own == job]
            found += [(way, self._rebuilt(alike, made)) for way, made in rebuilt().items()]
        return found

    def _rebuilt(self, alike: Sequence[Subject], made: Path | str) -> list[Subject] | str:
        if isinstance(made, str):
            return made
        try:
            kernel = self._session.load(made, alike[0].plan)
        except RuntimeError as error:  # the driver's assembler, or no memory for code
            return str(error)
        return [dataclasses.replace(each, kernel=kernel) for each in alike]


def _no_tools(verdict: Verdict, limit_s: float) -> bool:
    """Left out."""
    return True


_WORDS = {
    "load": "loading the kernels",
    "build": "building the kernels",
    "start": "checking the first launches",
    "verify": "checking cases",
    "alignment": WORDS,
    "random_tests": "random cases",
    "served_sizes": "launching at served sizes",
    "perturbation": "checking disturbed launches",
    "sanitizer": "waiting for the sanitizer",
    "measure": "timing cases",
}

_LEAST_S = 2.0  # of a stage, however late it is


class Stages:
    """Measures the stages of a trial. `tell` is called with each step in words. `seconds`: the time
    of each stage. `cut_short`: a stage had no time for all of its checks, because the clock has
    passed `until_s`."""

    def __init__(self, tell: Callable[[str], None], until_s: float = math.inf) -> None:
        self._tell = tell
        self._until_s = until_s
        self.seconds: dict[str, float] = {}
        self.cut_short = False
        self.step = ""
        """The present step in words."""

    def left_s(self) -> float:
        """The time that the present stage may take; at least a little."""
        return max(_LEAST_S, self._until_s - time.monotonic())

    def is_late(self) -> bool:
        """Whether the time is over, so that the next stages must be left out."""
        late = time.monotonic() >= self._until_s
        self.cut_short |= late
        return late

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        self._begin(_WORDS[stage])
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started

    def at(self, what: str, number: int, count: int) -> None:
        """Reports that the stage is at part `number` of `count`."""
        self._begin(f"{what} {number} of {count}")

    def _begin(self, step: str) -> None:
        self.step = step
        self._tell(step)
