"""Trials of callables in this process: their session, gate and clock, without worker and store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from evotune.backends.base.launch import CompileFailure, DeviceProfile
from evotune.backends.python.bundle import BundleCompiler
from evotune.backends.python.callable_session import CallableSession
from evotune.backends.python.device_session import DeviceCallableSession
from evotune.problems import create_problem
from evotune.runs.setup import KernelSetup, load_setup
from evotune.trial import Configuration, Outcome, OutcomeKind
from evotune.workers.executor import HELD_OUT, TIMED
from evotune.workers.messages import TrialCase, TrialRequest
from evotune.workers.trial_runner import TrialRunner
from tests.patience import PATIENCE_S

BASELINE = "torch:eager"
OpenSession = Callable[[DeviceProfile], CallableSession | DeviceCallableSession]


class CallableTrials:
    """Runs configurations of a space, one after the other."""

    def __init__(
        self,
        space: Path,
        folder: Path,
        device: str = "cpu:1",
        open_session: OpenSession | None = None,
        secret: str = "a secret",
    ) -> None:
        """`open_session` opens the device; without it, callables run on this machine's CPU."""
        setup = load_setup(space, device)
        assert isinstance(setup, KernelSetup)
        self.setup = setup
        self._folder = folder
        self._count = 0
        spec = setup.problem_spec
        self.session = open_session(setup.profile) if open_session else CallableSession()
        self.problem = create_problem(spec.name, spec.dtype, setup.root)
        self._runner = TrialRunner(
            self.session, setup.profile, self.problem, deterministic=True, secret=secret
        )

    def run(
        self,
        *,
        build_s: float = PATIENCE_S,
        confirm: bool = False,
        number: int | None = None,
        **values: object,
    ) -> Outcome:
        """The outcome of the default with these values, as the trial of this number."""
        if number is None:
            number, self._count = self._count, self._count + 1
        cases = self.cases(number, confirm=confirm, **values)
        if isinstance(cases, CompileFailure):
            return Outcome(OutcomeKind(cases.kind), reason=cases.reason)
        timed = [case.case.label for case in cases if case.role in (TIMED, HELD_OUT)]
        request = TrialRequest(
            number=number,
            cases=tuple(cases),
            confirm=confirm,
            baselines=dict.fromkeys(timed, BASELINE),
            build_s=build_s,
        )
        self._runner.prepare(request)
        with _scheduled_as_before(), self._runner.beside(request) as beside:
            return self._runner.run(request, beside)

    def cases(
        self, number: int = 0, *, confirm: bool = False, **values: object
    ) -> list[TrialCase] | CompileFailure:
        """The compiled cases of the default with these values."""
        configuration = Configuration({**self.setup.space.default(), **values})
        proposal = self.setup.planner.proposal(number, configuration, confirm=confirm)
        assert not proposal.rejection
        cases = []
        for job in proposal.cases:
            path = self._folder / f"{job.compile.key[:16]}.bin"
            built = BundleCompiler().compile(job.compile, path, PATIENCE_S)
            if isinstance(built, CompileFailure):
                return built
            cases.append(TrialCase(job.case, job.role, job.plan, job.flops, str(path)))
        return cases

    def close(self) -> None:
        self.session.take_stock()
        self.session.close()


@contextmanager
def _scheduled_as_before() -> Iterator[None]:
    """Undoes what a candidate did to this process, which a run would replace by another one."""
    policy, niceness = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    cores = os.sched_getaffinity(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            os.sched_setscheduler(0, policy, os.sched_param(0))
        if os.getpriority(os.PRIO_PROCESS, 0) != niceness:
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
        os.sched_setaffinity(0, cores)


@contextmanager
def callable_trials(
    space: Path,
    folder: Path,
    device: str = "cpu:1",
    open_session: OpenSession | None = None,
    secret: str = "a secret",
) -> Iterator[CallableTrials]:
    """On one core, as on any machine: a host's calls, and the baseline's."""
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # as a worker has it, which keeps the other cores
        trials = CallableTrials(space, folder, device, open_session, secret)
        try:
            yield trials
        finally:
            trials.close()
            torch.set_num_threads(threads)
            os.sched_setaffinity(0, cores)
