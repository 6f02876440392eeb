"""Times all baselines of a case alone, before a run chooses one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evotune.backends.base.session import Sampler, Session
from evotune.problems.examination import mistake_of
from evotune.problems.libraries.library_catalog import UnusableBaseline
from evotune.problems.problem import Case, Problem, Tensors
from evotune.timing.paired import TimingSettings
from evotune.timing.samplers import time_in_turn_us, warm_sampler
from evotune.trial import OutcomeKind
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.pool import InputPool, InputSet
from evotune.workers.executor import BaselineTiming

_MOST_REASON = 300


class FailedBaseline(Exception):
    """A baseline raised an error of its own. This process must time nothing more: the error may
    have come in the middle of a capture, or have broken the device's context."""

    def __init__(self, timing: BaselineTiming) -> None:
        super().__init__(timing.reason)
        self.timing = timing


class BaselineTimer:
    """Holds baselines to the error limits of candidates, and times them."""

    def __init__(
        self,
        session: Session,
        problem: Problem,
        pool: InputPool,
        failed: Sequence[BaselineTiming] = (),
    ) -> None:
        """`failed` are baselines that raised FailedBaseline in earlier processes."""
        self._failed = failed
        self._session = session
        self._problem = problem
        self._pool = pool

    def of_case(self, case: Case, libraries: Sequence[str]) -> list[BaselineTiming]:
        """Every baseline, and those of the optional libraries named. A library that cannot be
        called has a reason in place of a time, and so has a baseline that failed before; one that
        fails now raises FailedBaseline."""
        inputs = self._pool.get(case, "normal", 0)
        reasons = {each.name: each.reason for each in self._failed if each.case == case.label}
        passed: dict[str, bool] = {}
        samplers: dict[str, Sampler] = {}
        calls = self._problem.baselines(case, dict(inputs.inputs))
        for name in [each for each in libraries if each not in reasons]:
            calls |= self._problem.baselines(case, dict(inputs.inputs), name)
            if name not in calls:
                reasons[name] = f"{name}: it does not compute {self._problem.name}"
        for name, call in calls.items():
            if name in reasons:
                continue
            try:
                passed[name] = _passes(call, inputs)
                samplers[name] = warm_sampler(self._session, [call], TimingSettings())
            except UnusableBaseline as error:
                reasons[name] = str(error)
            except Exception as error:  # noqa: BLE001 (a library raises what it likes)
                self._blame(case, name, error)
        found = [
            BaselineTiming(case.label, name, time_us, passed[name])
            for name, time_us in time_in_turn_us(samplers).items()
        ]
        samplers.clear()
        calls.clear()
        self._session.free()
        refused = [
            BaselineTiming(case.label, name, 0.0, False, why) for name, why in reasons.items()
        ]
        return [*found, *refused]

    def _blame(self, case: Case, name: str, error: Exception) -> None:
        """Passes over a baseline that ran out of memory, as one that stores all attention scores
        does at long lengths. Raises the error where a user's problem is to blame, and where the
        device is lost, else FailedBaseline."""
        fault = self._session.fault(error) if isinstance(error, RuntimeError) else None
        if fault is not None and fault.kind is OutcomeKind.DEVICE_OOM:
            return
        lost = fault is not None and fault.kind is OutcomeKind.DEVICE_LOST
        if lost or (fault is None and mistake_of(self._problem, error) is not None):
            raise error
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MOST_REASON]
        reason = f"{name}: {told}"
        raise FailedBaseline(BaselineTiming(case.label, name, 0.0, False, reason)) from error


def _passes(call: Callable[[], Tensors], inputs: InputSet) -> bool:
    """Whether a baseline's outputs are within the error limits that candidates must keep."""
    return all(
        LIMITS.hold(errors_against(value, inputs.expected[out])) for out, value in call().items()
    )
