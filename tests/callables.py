"""Trials of callables in this process: their session, gate and clock, without worker and store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evotune.backends.base.launch import CompileFailure
from evotune.backends.python.bundle import BundleCompiler
from evotune.backends.python.callable_session import CallableSession
from evotune.problems import create_problem
from evotune.runs.setup import KernelSetup, load_setup
from evotune.trial import Configuration, Outcome, OutcomeKind
from evotune.workers.executor import HELD_OUT, TIMED
from evotune.workers.messages import TrialCase, TrialRequest
from evotune.workers.trial_runner import TrialRunner
from tests.patience import PATIENCE_S

BASELINE = "torch:eager"


class CallableTrials:
    """Runs configurations of a space, one after the other."""

    def __init__(self, space: Path, folder: Path) -> None:
        setup = load_setup(space, "cpu:1")
        assert isinstance(setup, KernelSetup)
        self.setup = setup
        self._folder = folder
        self._count = 0
        spec = setup.problem_spec
        self.session = CallableSession()
        problem = create_problem(spec.name, spec.dtype, setup.root)
        self._runner = TrialRunner(
            self.session, setup.profile, problem, deterministic=True, secret="a secret"
        )

    def run(
        self, *, build_s: float = PATIENCE_S, confirm: bool = False, **values: object
    ) -> Outcome:
        """The outcome of the default with these values."""
        chosen = {**self.setup.space.default(), **values}
        number, self._count = self._count, self._count + 1
        configuration = Configuration(chosen)
        proposal = self.setup.planner.proposal(number, configuration, confirm=confirm)
        assert not proposal.rejection
        cases = []
        for job in proposal.cases:
            path = self._folder / f"{job.compile.key[:16]}.bin"
            built = BundleCompiler().compile(job.compile, path, PATIENCE_S)
            if isinstance(built, CompileFailure):
                return Outcome(OutcomeKind(built.kind), reason=built.reason)
            cases.append(TrialCase(job.case, job.role, job.plan, job.flops, str(path)))
        timed = [case.case.label for case in cases if case.role in (TIMED, HELD_OUT)]
        request = TrialRequest(
            number=number,
            cases=tuple(cases),
            confirm=confirm,
            baselines=dict.fromkeys(timed, BASELINE),
            build_s=build_s,
        )
        self._runner.prepare(request)
        with self._runner.beside(request) as beside:
            return self._runner.run(request, beside)

    def close(self) -> None:
        self.session.take_stock()
        self.session.close()


@contextmanager
def callable_trials(space: Path, folder: Path) -> Iterator[CallableTrials]:
    trials = CallableTrials(space, folder)
    try:
        yield trials
    finally:
        trials.close()
