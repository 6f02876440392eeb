"""The gate itself: launch, poison, value, repeat, on every input kind and edge shape.

The harness allocates, launches and compares; a candidate is only ever device code.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from evotune.device.launch import LaunchPlan
from evotune.device.protocol import Sampler, Session
from evotune.problems.base import Case, Problem, Tensors
from evotune.trial import Check, OutcomeKind
from evotune.verify.accuracy import errors_against
from evotune.verify.buffers import BufferSet, unwritten
from evotune.verify.burst import altering_burst, reuse
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
        first = self._launch(launch, buffers)
        buffers.poison()
        self.compare(subject.case, kind, buffers, inputs, verdict, outputs=first)
        if not verdict.passed or self._written_late(subject.case, kind, buffers, verdict):
            return
        if not self._deterministic:
            return
        second = self._launch(launch, buffers)
        if self._damaged(subject.case, kind, buffers, verdict, " in its second launch"):
            return
        for name, value in second.items():
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
        placed: Sequence[BufferSet],
        seed: int,
        verdict: Verdict,
        *,
        how: str = "replayed",
    ) -> None:
        """After timing: new inputs in the same memory, poisoned outputs, what was timed again.
        `placed` are all the buffers that it was timed on, `how` it was is for the record."""
        if not verdict.passed:
            return
        case = subject.case
        if any(self._damaged(case, "normal", b, verdict, " while it was timed") for b in placed):
            return
        inputs = self._pool.get(case, "normal", seed)
        for buffers in placed:
            buffers.overwrite_inputs(dict(inputs.inputs))
            buffers.poison()
        timed.run()
        outputs = [buffers.snapshot() for buffers in placed]
        for buffers, output in zip(placed, outputs, strict=True):
            self.compare(case, f"{how} normal", buffers, inputs, verdict, outputs=output)
            if not verdict.passed:
                return

    def alter(
        self, subject: Subject, placed: Sequence[BufferSet], seed: int, verdict: Verdict
    ) -> None:
        """On one of the buffers that were timed and replayed with this seed: bursts of launches
        with one input element changed before each and the outputs left as they are. A kernel that
        skips work when it finds its outputs written, its inputs familiar or its launches close
        together fails. At last, whether new inputs take longer. The inputs are left as found.
        """
        if not verdict.passed:
            return
        case, inputs = subject.case, self._pool.get(subject.case, "normal", seed)
        generator = torch.Generator().manual_seed(seed)
        buffers = placed[int(torch.randint(len(placed), (1,), generator=generator))]
        launch = self._session.bind(subject.kernel, subject.plan, buffers.pointers)
        variants = self._pool.altered(case, seed)
        for altered in variants:
            if not verdict.passed:
                return
            burst = altering_burst(self._session, launch, buffers, altered.alterations)
            buffers.overwrite_inputs(dict(inputs.inputs))
            burst.run([alteration.value for alteration in altered.alterations])
            output = buffers.snapshot()
            buffers.expect_inputs(dict(altered.inputs))
            self.compare(case, "altered in place", buffers, altered, verdict, outputs=output)
        if verdict.passed:
            # One of each input: results may be kept by any of them.
            changes = {change.name: change for each in variants for change in each.alterations}
            reused = reuse(self._session, launch, buffers, list(changes.values()), generator)
            buffers.overwrite_inputs(dict(inputs.inputs))
            if reused:
                check = Check(case.label, "new and familiar", "failed", detail=f"a launch {reused}")
                verdict.fail(OutcomeKind.TOO_FAST, check)

    def buffers(self, subject: Subject, inputs: InputSet) -> BufferSet:
        """Fresh memory, at other addresses than the set before."""
        specs = self._problem.tensors(subject.case)
        device = self._session.torch_device
        # The set before is still held: the allocator cannot hand out its addresses again.
        self._latest = BufferSet(specs, subject.plan, dict(inputs.inputs), device)
        return self._latest

    def _launch(self, launch: Callable[[], object], buffers: BufferSet) -> Tensors:
        """The outputs as they are when the launch has returned."""
        launch()
        self._session.synchronize()
        return buffers.snapshot()

    def compare(
        self,
        case: Case,
        kind: str,
        buffers: BufferSet,
        inputs: InputSet,
        verdict: Verdict,
        *,
        outputs: Tensors,
    ) -> None:
        """Guards and inputs intact, all written, no NaN, errors within the limits."""
        if self._damaged(case, kind, buffers, verdict):
            return
        for name, output in outputs.items():
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
            # Finite errors say as much of the output, without asking the device.
            finite = math.isfinite(errors.max) and math.isfinite(errors.rms)
            bad = 0 if finite else int((~torch.isfinite(output)).sum())
            if bad:
                never = unwritten(output)
                detail = f"{bad} elements of {name} are NaN or infinite"
                if never:
                    detail += f", {never} of them never written"
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
    def _written_late(case: Case, kind: str, buffers: BufferSet, verdict: Verdict) -> bool:
        """Outputs were poisoned when the launch had returned: nobody may write them now."""
        late = buffers.written()
        if late:
            detail = f"wrote {late} after its launch had returned"
            verdict.fail(OutcomeKind.LAUNCH_ERROR, Check(case.label, kind, "failed", detail=detail))
        return bool(late)

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
