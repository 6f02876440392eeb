"""Times all baselines of a case alone, before a run chooses one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from evotune.device.session import Sampler, Session
from evotune.execute.executor import BaselineTiming
from evotune.measure.paired import TimingSettings
from evotune.measure.samplers import time_in_turn_us, warm_sampler
from evotune.problems.libraries.library_catalog import UnusableBaseline
from evotune.problems.problem import Case, Problem, Tensors
from evotune.trial import OutcomeKind
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.pool import InputPool, InputSet


class BaselineTimer:
    """Holds baselines to the error limits of candidates, and times them."""

    def __init__(self, session: Session, problem: Problem, pool: InputPool) -> None:
        self._session = session
        self._problem = problem
        self._pool = pool

    def of_case(self, case: Case, libraries: Sequence[str]) -> list[BaselineTiming]:
        """Every baseline, and those of the optional libraries named. A library that cannot be
        called has a reason in place of a time."""
        inputs = self._pool.get(case, "normal", 0)
        reasons: dict[str, str] = {}
        passed: dict[str, bool] = {}
        samplers: dict[str, Sampler] = {}
        calls = self._problem.baselines(case, dict(inputs.inputs))
        for name in libraries:
            calls |= self._problem.baselines(case, dict(inputs.inputs), name)
            if name not in calls:
                reasons[name] = f"{name}: it does not compute {self._problem.name}"
        for name, call in calls.items():
            with self._unless_too_large():
                try:
                    passed[name] = _passes(call, inputs)
                except UnusableBaseline as error:
                    reasons[name] = str(error)
                    continue
                samplers[name] = warm_sampler(self._session, [call], TimingSettings())
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

    @contextlib.contextmanager
    def _unless_too_large(self) -> Iterator[None]:
        """Passes over a baseline that runs out of memory, as one that stores all attention scores
        does at long lengths."""
        try:
            yield
        except RuntimeError as error:
            fault = self._session.fault(error)
            if fault is None or fault.kind is not OutcomeKind.DEVICE_OOM:
                raise


def _passes(call: Callable[[], Tensors], inputs: InputSet) -> bool:
    """Whether a baseline's outputs are within the error limits that candidates must keep."""
    return all(
        LIMITS.hold(errors_against(value, inputs.expected[out])) for out, value in call().items()
    )
