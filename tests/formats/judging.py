"""Candidates of other people's formats through the gate in this process: no worker, no timing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from evotune.api.given_space import materialize
from evotune.backends.base.launch import CompileFailure
from evotune.backends.python.bundle import BundleCompiler
from evotune.backends.python.callable_session import CallableSession
from evotune.backends.python.host_process import CallableFault
from evotune.formats import Given, detect, load
from evotune.problems import create_problem
from evotune.problems.examination import examine, ordinary_case, tiny_case
from evotune.problems.user import UserProblem
from evotune.runs.setup import KernelSetup, load_setup
from evotune.space.objects import Space
from evotune.trial import Configuration, OutcomeKind
from evotune.user_code import trust
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.executor import RANDOM, TIMED, WHEN_THERE_IS_TIME
from tests.patience import PATIENCE_S

_RANDOM_TESTS = 3


@contextlib.contextmanager
def given(candidate: Path, task: Path | None, folder: Path) -> Iterator[Given]:
    """The candidate as the gate gets it, with agreement to all files."""
    with trust.all_agreed():
        yield load(candidate, task, detect(candidate, task), folder)


class Judge:
    """Judges candidates, all in one session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._session = CallableSession()

    def judge(self, candidate: Path, task: Path | None = None) -> Verdict:
        """The gate's verdict on the timed and the further cases and on some random ones. The
        problem is examined first, as `evotune.gate` does."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        with given(candidate, task, folder) as found:
            keywords: dict[str, Any] = {**found.keywords, "parameters": {"GATED": [1]}}
            space = Space(kernel=found.kernel, baseline="torch:best", **keywords)
            made = folder / "space"
            made.mkdir()
            setup = load_setup(materialize(space, made), "cpu:1")
            assert isinstance(setup, KernelSetup)
            spec = setup.problem_spec
            problem = create_problem(spec.name, spec.dtype, setup.root)
        assert isinstance(problem, UserProblem)
        cases = setup.cases[TIMED]
        examine(problem, tiny_case(problem, cases), ordinary=ordinary_case(problem, cases))
        verdict = self._examined(setup, problem, folder)
        self._session.take_stock()
        return verdict

    def _examined(self, setup: KernelSetup, problem: UserProblem, folder: Path) -> Verdict:
        verdict = Verdict()
        gate = Gate(self._session, problem, InputPool(problem), deterministic=True)
        configuration = Configuration(setup.space.default())
        jobs = setup.planner.proposal(0, configuration, confirm=True).cases
        surely = [job for job in jobs if job.role not in WHEN_THERE_IS_TIME]
        small = (job for job in jobs if job.role == RANDOM and job.flops < 1 << 22)
        for number, job in enumerate([*surely, *islice(small, _RANDOM_TESTS)]):
            path = folder / f"{job.compile.key[:16]}.bin"
            built = BundleCompiler().compile(job.compile, path, PATIENCE_S)
            assert not isinstance(built, CompileFailure), built.reason
            kinds = problem.input_kinds
            if job.role == RANDOM:
                kinds = tuple(problem.random_kinds(job.case, number))
            try:
                kernel = self._session.load(path, job.plan)
                gate.examine(Subject(job.case, job.plan, kernel), kinds, 0, verdict)
            except CallableFault as fault:
                verdict.kind, verdict.reason = OutcomeKind(fault.kind), fault.reason
            if not verdict.passed:
                break
        return verdict

    def close(self) -> None:
        self._session.close()
