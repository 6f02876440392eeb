"""Kernels of a red-team space through the gate in this process: no worker, no timing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.device.launch import CompileFailure
from evotune.engine._planning import Planner
from evotune.engine.setup import load_setup
from evotune.execute.executor import RANDOM, TIMED, CaseJob
from evotune.problems import create_problem
from evotune.trial import Configuration
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

from .pipeline import SPACES, choices
from .timed import judge_timed


class InProcess:
    """The kernels of one space, with one pool of inputs for all."""

    def __init__(self, folder: Path, space: str) -> None:
        setup = load_setup(SPACES / space, "cpu")
        assert isinstance(setup.planner, Planner)
        assert setup.document is not None
        assert setup.document.problem is not None
        spec = setup.document.problem
        self._planner, self._folder = setup.planner, folder
        self._gene, _ = choices(space)
        self._problem = create_problem(spec.name, spec.dtype, setup.document.root)
        self._session, self._pool = CpuSession(), InputPool(self._problem)
        self._gate = Gate(self._session, self._problem, self._pool, deterministic=True)

    def judge(self, choice: str, *, timed: bool = False, random_tests: int = 0) -> Verdict:
        """The verdict on the timed and the edge shapes. With `timed` also that of the checks that
        follow the timing; then so many random tests, each on one kind of inputs."""
        verdict = Verdict()
        configuration = Configuration({**self._planner.bound.default(), self._gene: choice})
        jobs = self._planner.proposal(0, configuration, confirm=random_tests > 0).cases
        for job in jobs:
            if job.role == RANDOM or not verdict.passed:
                continue
            subject = self._subject(job)
            self._gate.examine(subject, self._problem.input_kinds, 0, verdict)
            if timed and job.role == TIMED:
                judge_timed(
                    *(self._session, self._gate, self._pool, subject),
                    **{"seed": 0, "verdict": verdict, "calls": 6, "watched_runs": 3},
                )
        small = (job for job in jobs if job.role == RANDOM and job.flops < 1 << 24)
        for number, job in enumerate(islice(small, random_tests)):
            kinds = self._problem.random_kinds(job.case, number)
            self._gate.examine(self._subject(job), kinds, 0, verdict)
        return verdict

    def _subject(self, job: CaseJob) -> Subject:
        path = self._folder / f"{job.compile.key[:16]}.so"
        if not path.exists():
            built = CpuCompiler().compile(job.compile, path, 120.0)
            assert not isinstance(built, CompileFailure), built.log
        return Subject(job.case, job.plan, self._session.load(path, job.plan))
