"""The gate itself: launch, poison, value, repeat, on every input kind and edge shape.

The harness allocates, launches and compares; a candidate is only ever device code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from evotune.device.launch import LaunchPlan
from evotune.device.protocol import Sampler, Session
from evotune.problems.base import Case, Problem
from evotune.trial import Check, OutcomeKind
from evotune.verify.accuracy import errors_against
from evotune.verify.buffers import BufferSet
from evotune.verify.pool import InputPool, InputSet


@dataclass(frozen=True, slots=True)
class Subject:
    """A loaded kernel and how to launch it on one case."""

    case: Case
    plan: LaunchPlan
    kernel: Callable[..., object]


@dataclass(slots=True)
class Verdict:
    """The checks made so far; `kind` is None while all passed."""

    checks: list[Check] = field(default_factory=list)
    kind: OutcomeKind | None = None
    reason: str = ""

    @property
    def passed(self) -> bool:
        return self.kind is None

    def fail(self, kind: OutcomeKind, check: Check) -> None:
        self.kind = kind
        self.reason = f"{check.case}, {check.inputs} inputs: {check.detail}"
        self.checks.append(check)


class Gate:
    """Runs checks on subjects in one session, with input sets from one pool."""

    def __init__(
        self, session: Session, problem: Problem, pool: InputPool, *, deterministic: bool
    ) -> None:
        self._session = session
        self._problem = problem
        self._pool = pool
        self._deterministic = deterministic
        self._latest: BufferSet | None = None

    def examine(self, subject: Subject, kind: str, seed: int, verdict: Verdict) -> None:
        """One input set in fresh memory: launched, checked, launched again, compared."""
        if not verdict.passed:
            return
        inputs = self._pool.get(subject.case, kind, seed)
        buffers = self.buffers(subject, inputs)
        launch = self._session.bind(subject.kernel, subject.plan, buffers.pointers)
        launch()
        self._session.synchronize()
        self.compare(subject.case, kind, buffers, inputs, verdict)
        if not (verdict.passed and self._deterministic):
            return
        first = {name: value.clone() for name, value in buffers.outputs().items()}
        buffers.poison()
        launch()
        self._session.synchronize()
        if self._damaged(subject.case, kind, buffers, verdict, " in its second launch"):
            return
        for name, value in buffers.outputs().items():
            differing = int((_bits(value) != _bits(first[name])).sum())
            if differing:
                detail = f"{differing} elements of {name} differ between two equal launches"
                check = Check(subject.case.label, kind, "failed", detail=detail)
                verdict.fail(OutcomeKind.NONDETERMINISTIC, check)
                return

    def replay(
        self,
        subject: Subject,
        timed: Sampler,
        buffers: BufferSet,
        seed: int,
        verdict: Verdict,
    ) -> None:
        """After timing: new inputs in the same memory, poisoned outputs, what was timed again.

        And once more with a few input elements changed and the outputs left as they are: a
        kernel that skips work when it finds its outputs written or its inputs familiar fails.
        """
        if not verdict.passed:
            return
        if self._damaged(subject.case, "normal", buffers, verdict, " while it was timed"):
            return
        inputs = self._pool.get(subject.case, "normal", seed)
        buffers.overwrite_inputs(dict(inputs.inputs))
        buffers.poison()
        timed.run()
        self.compare(subject.case, "replayed normal", buffers, inputs, verdict)
        if not verdict.passed:
            return
        inputs = self._pool.altered(subject.case, seed)
        buffers.overwrite_inputs(dict(inputs.inputs))
        timed.run()
        self.compare(subject.case, "altered in place", buffers, inputs, verdict)

    def buffers(self, subject: Subject, inputs: InputSet) -> BufferSet:
        """Fresh memory, at other addresses than the set before."""
        specs = self._problem.tensors(subject.case)
        device = self._session.torch_device
        # The set before is still held: the allocator cannot hand out its addresses again.
        self._latest = BufferSet(specs, subject.plan, dict(inputs.inputs), device)
        return self._latest

    def compare(
        self, case: Case, kind: str, buffers: BufferSet, inputs: InputSet, verdict: Verdict
    ) -> None:
        """Guards and inputs intact, all written, no NaN, errors within the limits."""
        if self._damaged(case, kind, buffers, verdict):
            return
        for name, output in buffers.outputs().items():
            errors = errors_against(output, inputs.reference[name])
            limits = inputs.limits(name, errors)
            check = Check(
                case.label,
                kind,
                "passed",
                max_error=errors.max,
                max_limit=limits.max,
                rms_error=errors.rms,
                rms_limit=limits.rms,
            )
            bad = int((~torch.isfinite(output)).sum())
            if bad:
                unwritten = buffers.unwritten(name)
                detail = f"{bad} elements of {name} are NaN or infinite"
                if unwritten:
                    detail += f", {unwritten} of them never written"
                failed = Check(case.label, kind, "failed", detail=detail)
                verdict.fail(OutcomeKind.NAN, failed)
                return
            if not limits.hold(errors):
                detail = (
                    f"{name} is off by {errors.max:.2e} (limit {limits.max:.2e}), "
                    f"RMS {errors.rms:.2e} (limit {limits.rms:.2e})"
                )
                failed = dataclasses.replace(check, status="failed", detail=detail)
                verdict.fail(OutcomeKind.WRONG_RESULT, failed)
                return
            verdict.checks.append(check)

    @staticmethod
    def _damaged(
        case: Case, kind: str, buffers: BufferSet, verdict: Verdict, when: str = ""
    ) -> bool:
        damage = buffers.damage()
        if damage:
            check = Check(case.label, kind, "failed", detail=damage + when)
            verdict.fail(OutcomeKind.OUT_OF_BOUNDS, check)
            return True
        dirty = buffers.not_zeroed()
        if dirty:
            detail = f"left workspace {dirty} (zero_once) other than zero{when}"
            verdict.fail(OutcomeKind.WRONG_RESULT, Check(case.label, kind, "failed", detail=detail))
            return True
        return False


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
