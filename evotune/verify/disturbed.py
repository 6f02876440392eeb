"""Disturbed launches of a champion: all must leave the same bits.

A race may never show by itself: warps and blocks that start together stay close, and hardware is
fast. Other work beside a kernel changes the times at which its parts run; other data left in shared
memory changes the values that they find there. A right result depends on neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from evotune.backends.base.session import Disturb, LaunchFailure, Session
from evotune.trial import Check, OutcomeKind
from evotune.verify.buffers import bits
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

CASE = "disturbed"
"""The name of the case in checks of disturbed launches."""
_LAUNCHES = 50  # of each case
_A_LOOK = 10  # launches between two looks at the clock
_INPUTS = "normal"
_NOT_ITS_FAULT = (OutcomeKind.RESOURCE_LIMIT, OutcomeKind.DEVICE_OOM)


class PerturbedLaunches:
    """Disturbs the launches of champions in one session; `seed` is the seed of their inputs."""

    def __init__(self, session: Session, gate: Gate, pool: InputPool, seed: int) -> None:
        self._session = session
        self._gate = gate
        self._pool = pool
        self._seed = seed

    def check(self, subjects: Sequence[Subject], verdict: Verdict, *, limit_s: float) -> None:
        """Adds one check for each of the session's perturbations, which share `limit_s`."""
        perturbations = self._session.perturbations()
        for name, enter in perturbations.items():
            if verdict.passed:
                self._check(name, subjects, enter, verdict, limit_s=limit_s / len(perturbations))

    def check_rebuilt(
        self, name: str, subjects: Sequence[Subject], verdict: Verdict, *, limit_s: float
    ) -> None:
        """Check builds of the same kernels that disturb themselves: their results must be right and
        always equal. A build that needs more than the device has is skipped."""
        if not verdict.passed:
            return
        made = Verdict()
        try:
            for subject in subjects:
                self._gate.examine(subject, [_INPUTS], self._seed, made)
        except RuntimeError as error:
            if not (why := self._beyond_device(error)):
                raise
            verdict.checks.append(Check(CASE, name, "skipped", detail=why))
            return
        if made.kind is not None:
            failed = made.checks[-1]
            detail = f"{failed.case}: {failed.detail}"
            verdict.fail(made.kind, Check(CASE, name, "failed", detail=detail))
            return
        self._check(name, subjects, _by_itself, verdict, limit_s=limit_s)

    def _beyond_device(self, error: RuntimeError) -> str:
        if isinstance(error, LaunchFailure):
            return str(error)
        fault = self._session.fault(error)
        return fault.reason if fault is not None and fault.kind in _NOT_ITS_FAULT else ""

    def _check(
        self,
        name: str,
        subjects: Sequence[Subject],
        enter: Callable[[], AbstractContextManager[Disturb]],
        verdict: Verdict,
        *,
        limit_s: float,
    ) -> None:
        deadline = time.monotonic() + limit_s
        launches = 0
        for subject in subjects:
            try:
                wrong = self._disturbed(subject, enter, deadline)
            except LaunchFailure as error:  # the disturbance itself cannot be launched
                verdict.checks.append(Check(CASE, name, "skipped", detail=str(error)))
                return
            launches += len(wrong)
            if any(wrong):
                detail = (
                    f"{sum(count > 0 for count in wrong)} of {len(wrong)} launches differ from an "
                    f"undisturbed one, in up to {max(wrong)} elements, on {subject.case.label}"
                )
                failed = Check(CASE, name, "failed", detail=detail)
                verdict.fail(OutcomeKind.NONDETERMINISTIC, failed)
                return
        status = "passed" if launches else "skipped"
        detail = f"{launches} launches" if launches else f"none began within {limit_s:g} s"
        verdict.checks.append(Check(CASE, name, status, detail=detail))

    def _disturbed(
        self,
        subject: Subject,
        enter: Callable[[], AbstractContextManager[Disturb]],
        deadline: float,
    ) -> list[int]:
        """For each launch before the deadline, the number of elements that differ from an
        undisturbed launch."""
        inputs = self._pool.get(subject.case, _INPUTS, self._seed)
        buffers = self._gate.buffers(subject, [inputs])
        launch = self._session.bind(subject.kernel, subject.plan, buffers.pointers())
        launch()
        self._session.settle()
        expected = {name: bits(value) for name, value in buffers.snapshot().items()}
        differing: list[int] = []
        with enter() as disturb:
            while len(differing) < _LAUNCHES and time.monotonic() < deadline:
                counts = []
                for number in range(len(differing), len(differing) + _A_LOOK):
                    buffers.poison()
                    disturb(self._seed * _LAUNCHES + number)
                    launch()
                    self._session.settle()
                    outputs = buffers.outputs()
                    each = [
                        (bits(outputs[name]) != value).sum() for name, value in expected.items()
                    ]
                    counts.append(torch.stack(each).sum())
                differing += torch.stack(counts).tolist()
        return differing


def _by_itself() -> AbstractContextManager[Disturb]:
    return nullcontext(lambda seed: None)
