"""Kernels of a red-team space through the gate in this process: no worker, no timing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems import create_problem
from evotune.runs.planning import Planner
from evotune.runs.setup import KernelSetup, load_setup
from evotune.trial import Configuration
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.executor import RANDOM, TIMED, WHEN_THERE_IS_TIME, CaseJob
from tests.cpu_kernels import loaded, one_thread

from .pipeline import SPACES
from .timed import judge_timed


class InProcess:
    """The kernels of one space, with one pool of inputs for all."""

    def __init__(self, folder: Path, space: str) -> None:
        setup = self._load(SPACES / space)
        assert isinstance(setup.planner, Planner)
        assert setup.document is not None
        assert setup.document.problem is not None
        spec = setup.document.problem
        self._planner, self._folder = setup.planner, folder
        self._gene = "BEHAVIOUR"
        self._problem = create_problem(spec.name, spec.dtype, setup.document.root)
        self._session, self._pool = self._open(), InputPool(self._problem)
        self._gate = Gate(self._session, self._problem, self._pool, deterministic=True)

    def _load(self, space: Path) -> KernelSetup:
        return load_setup(space, "cpu")

    def _open(self) -> CpuSession:
        return CpuSession()

    @property
    def choices(self) -> list[str]:
        """The kernels of the space."""
        parameters = {parameter.name: parameter for parameter in self._planner.bound.parameters}
        return [str(value) for value in parameters[self._gene].values]

    def judge(self, choice: str, *, timed: bool = False, random_tests: int = 0) -> Verdict:
        """The verdict on the timed and the edge shapes. With `timed` also that of the checks that
        follow the timing; then so many random tests, each on one kind of inputs."""
        verdict = Verdict()
        configuration = Configuration({**self._planner.bound.default(), self._gene: choice})
        jobs = self._planner.proposal(0, configuration, confirm=random_tests > 0).cases
        for job in jobs:
            if job.role in WHEN_THERE_IS_TIME or not verdict.passed:
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
        return loaded(self._session, job, self._folder)


class Teams:
    """The kernels of several spaces. A space is loaded when it is first asked for."""

    def __init__(self, folder: Path, kind: type[InProcess] = InProcess) -> None:
        self._folder, self._kind = folder, kind
        self._loaded: dict[str, InProcess] = {}

    def of(self, space: str) -> InProcess:
        if space not in self._loaded:
            folder = self._folder / space
            folder.mkdir()
            self._loaded[space] = self._kind(folder, space)
        return self._loaded[space]


@contextlib.contextmanager
def childless() -> Iterator[None]:
    """No child counts: workers of other tests are children of this process too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evotune.backends.cpu.cpu_session.has_children", lambda: False)
        yield


@contextlib.contextmanager
def in_process(folder: Path, space: str) -> Iterator[InProcess]:
    """The space's kernels, while PyTorch has one thread."""
    with one_thread(), childless():
        yield InProcess(folder, space)
