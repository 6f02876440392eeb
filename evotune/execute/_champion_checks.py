"""A champion's checks beside the gate: disturbed launches, and NVIDIA's compute-sanitizer tools."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from evotune.backends import registry
from evotune.backends.backend import SanitizedCase
from evotune.device.profile import DeviceProfile
from evotune.device.session import LaunchFailure, Session
from evotune.execute.executor import EDGE, TIMED
from evotune.execute.messages import TrialCase
from evotune.problems.problem import Problem
from evotune.scratch import scratch_folder
from evotune.trial import Check
from evotune.verify.disturbed import CASE, PerturbedLaunches
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.kept_checks import ALL_KINDS
from evotune.verify.pool import InputPool

_PERTURBED_S = 2.0
_REBUILD_S = 10.0


class ChampionChecks:
    """These checks, for the champions of one worker."""

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
        self._problem = problem
        self._gate = gate
        self._pool = pool
        self._deterministic = deterministic

    def disturb(
        self,
        timed: Sequence[Subject],
        cases: Sequence[TrialCase],
        seed: int,
        verdict: Verdict,
    ) -> None:
        """Launches the timed cases, disturbed in every way that the session has, and checks the
        results. Then does so with the same kernels, rebuilt so that they disturb themselves."""
        if not self._session.perturbations():
            return
        if not self._deterministic:
            why = "results need not be the same bits twice"
            verdict.checks.append(Check(CASE, ALL_KINDS, "skipped", detail=why))
            return
        launches = PerturbedLaunches(self._session, self._gate, self._pool, seed)
        launches.check(timed, verdict, limit_s=_PERTURBED_S)
        jobs = [item.compile for item in cases if item.role == TIMED]
        if not verdict.passed:
            return
        for job in dict.fromkeys(jobs):
            if job is None:
                continue
            alike = [s for s, own in zip(timed, jobs, strict=True) if own == job]
            with scratch_folder() as folder:
                found = self._backend.rebuilt(job, folder, _REBUILD_S)
                for way, made in found.items():
                    try:
                        if isinstance(made, str):
                            raise LaunchFailure(made)
                        rebuilt = [
                            dataclasses.replace(s, kernel=self._session.load(made, s.plan))
                            for s in alike
                        ]
                    except RuntimeError as error:  # the driver's assembler, or no memory for code
                        skipped = Check(CASE, way, "skipped", detail=str(error))
                        verdict.checks.append(skipped)
                        continue
                    limit_s = _PERTURBED_S / len(found)
                    launches.check_rebuilt(way, rebuilt, verdict, limit_s=limit_s)

    def _sanitized(self, item: TrialCase) -> SanitizedCase:
        specs = tuple(self._problem.tensors(item.case))
        indices: dict[str, bytes] = {}
        if any(spec.is_index for spec in specs):
            inputs = self._problem.make_inputs(item.case, "normal", 0)
            indices = {
                spec.name: inputs[spec.name].numpy().tobytes() for spec in specs if spec.is_index
            }
        return SanitizedCase(item.binary, item.plan, specs, indices)

    @contextlib.contextmanager
    def sanitizing(self, cases: Sequence[TrialCase]) -> Iterator[Callable[[Verdict], None]]:
        """Runs the tools on the edge cases, beside the checks that follow. The function that it
        yields waits for them and enters their checks into a verdict. The backend's
        `disqualification` says whether a finding fails the candidate or is a warning."""
        edges = [item for item in cases if item.role == EDGE]
        launched = [self._sanitized(item) for item in edges]
        noted = [item.mbarriers for item in edges]
        mbarriers = None if None in noted else any(noted)
        self._session.free()  # each tool is a process with a context of its own
        with self._backend.sanitizing(launched) as tools:

            def judge(verdict: Verdict) -> None:
                checks = tools()
                verdict.checks += checks
                for check in checks:
                    kind = self._backend.disqualification(check, mbarriers=mbarriers)
                    if kind is not None and verdict.passed:
                        verdict.kind = kind
                        verdict.reason = f"{check.inputs}, {check.case}: {check.detail}"

            yield judge
