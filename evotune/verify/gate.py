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
from evotune.verify.buffers import BufferSet, bits, unwritten
from evotune.verify.burst import altered_outputs, reuse
from evotune.verify.evidence import Evidence, Findings, gather, read
from evotune.verify.pool import InputPool, InputSet

_SECOND, _TIMED = " in its second launch", " while it was timed"


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
        """One input set in fresh memory: launched, looked at, launched again, compared."""
        if not verdict.passed:
            return
        case = subject.case
        inputs = self._pool.get(case, kind, seed)
        buffers = self.buffers(subject, inputs)
        launch = self._session.bind(subject.kernel, subject.plan, buffers.pointers)
        first = self._launch(launch, buffers)
        buffers.poison()
        evidence = [self.look(buffers, first, inputs)]
        differing: Tensors = {}
        if self._deterministic:
            launch()
            self._session.settle()
            second = buffers.outputs()
            differing = {name: bits(value) != bits(first[name]) for name, value in second.items()}
            flags = {name: elements.any() for name, elements in differing.items()}
            evidence.append(Evidence(buffers.inspect(), flags=flags))
        found = read(evidence)
        self._judge(case, kind, evidence[0], found[0], inputs=inputs, verdict=verdict)
        late = next((name for name, intact in found[0].flags.items() if not intact), "")
        if verdict.passed and late:
            detail = f"wrote {late} after its launch had returned"
            verdict.fail(OutcomeKind.LAUNCH_ERROR, Check(case.label, kind, "failed", detail=detail))
        if not (self._deterministic and verdict.passed):
            return
        self._judge_damage(case, kind, evidence[1], found[1], verdict=verdict, when=_SECOND)
        name = next((name for name, flag in found[1].flags.items() if flag), "")
        if verdict.passed and name:
            count = int(differing[name].sum())
            detail = f"{count} elements of {name} differ between two equal launches"
            check = Check(case.label, kind, "failed", detail=detail)
            verdict.fail(OutcomeKind.NONDETERMINISTIC, check)

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
        timed_so_far = [Evidence(buffers.inspect()) for buffers in placed]
        inputs = self._pool.get(case, "normal", seed)
        for buffers in placed:
            buffers.overwrite_inputs(dict(inputs.inputs))
            buffers.poison()
        timed.run()
        self._session.settle()
        evidence = [gather(buffers, buffers.snapshot(), inputs.reference) for buffers in placed]
        found = read([*timed_so_far, *evidence])
        for each, findings in zip(timed_so_far, found, strict=False):
            self._judge_damage(case, "normal", each, findings, verdict=verdict, when=_TIMED)
        for each, findings in zip(evidence, found[len(placed) :], strict=True):
            self._judge(case, f"{how} normal", each, findings, inputs=inputs, verdict=verdict)

    def alter(
        self, subject: Subject, placed: Sequence[BufferSet], seed: int, verdict: Verdict
    ) -> None:
        """On one of the buffers that were timed, with the inputs of this seed: a burst of launches
        with one input element changed before each and the outputs left as they are. A kernel that
        skips work when it finds its outputs written, its inputs familiar or its launches close
        together fails. The inputs are left as found.
        """
        if not verdict.passed:
            return
        case, inputs = subject.case, self._pool.get(subject.case, "normal", seed)
        buffers, launch, _ = self._one_place(subject, placed, seed)
        variants = self._pool.altered(case, seed)
        buffers.overwrite_inputs(dict(inputs.inputs))
        changes = [altered.alterations for altered in variants]
        outputs = altered_outputs(self._session, launch, buffers, changes)
        self._session.settle()
        buffers.expect_inputs(dict(variants[-1].inputs))
        evidence = [
            gather(buffers, output, altered.reference)
            for altered, output in zip(variants, outputs, strict=True)
        ]
        for altered, each, findings in zip(variants, evidence, read(evidence), strict=True):
            self._judge(case, "altered in place", each, findings, inputs=altered, verdict=verdict)
        buffers.overwrite_inputs(dict(inputs.inputs))

    def reuse(
        self, subject: Subject, placed: Sequence[BufferSet], seed: int, verdict: Verdict
    ) -> None:
        """On one of the buffers that were timed: whether launches on new inputs take longer than
        those on familiar ones. Only a time that matters need be asked. The inputs are left as found
        with this seed."""
        if not verdict.passed:
            return
        case, inputs = subject.case, self._pool.get(subject.case, "normal", seed)
        buffers, launch, generator = self._one_place(subject, placed, seed)
        altered = self._pool.altered(case, seed)
        # One of each input: results may be kept by any of them.
        changes = {change.name: change for each in altered for change in each.alterations}
        reused = reuse(self._session, launch, buffers, list(changes.values()), generator)
        if reused:
            check = Check(case.label, "new and familiar", "failed", detail=f"a launch {reused}")
            verdict.fail(OutcomeKind.TOO_FAST, check)
        buffers.overwrite_inputs(dict(inputs.inputs))

    def _one_place(
        self, subject: Subject, placed: Sequence[BufferSet], seed: int
    ) -> tuple[BufferSet, Callable[[], object], torch.Generator]:
        """Drawn by the seed, with its launch, and the generator for what else is drawn."""
        generator = torch.Generator().manual_seed(seed)
        buffers = placed[int(torch.randint(len(placed), (1,), generator=generator))]
        launch = self._session.bind(subject.kernel, subject.plan, buffers.pointers)
        return buffers, launch, generator

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
        self._session.settle()
        return buffers.snapshot()

    def look(self, buffers: BufferSet, outputs: Tensors, inputs: InputSet) -> Evidence:
        """What a launch left. Outputs were poisoned when it had returned: nobody may write them
        now, as far as can be seen after the errors have been worked out."""
        evidence = gather(buffers, outputs, inputs.reference)
        intact = {name: unwritten(value).all() for name, value in buffers.outputs().items()}
        return dataclasses.replace(evidence, flags=intact)

    def _judge(
        self,
        case: Case,
        kind: str,
        evidence: Evidence,
        findings: Findings,
        *,
        inputs: InputSet,
        verdict: Verdict,
    ) -> None:
        """Guards and inputs intact, all written, no NaN, errors within the limits."""
        self._judge_damage(case, kind, evidence, findings, verdict=verdict)
        for name, errors in findings.errors.items():
            if not verdict.passed:
                return
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
            output = evidence.outputs[name]
            finite = math.isfinite(errors.max) and math.isfinite(errors.rms)
            bad = 0 if finite else int((~torch.isfinite(output)).sum())
            if bad:
                never = int(unwritten(output).sum())
                detail = f"{bad} elements of {name} are NaN or infinite"
                if never:
                    detail += f", {never} of them never written"
                failed = Check(case.label, kind, "failed", detail=detail)
                verdict.fail(OutcomeKind.NAN, failed)
            elif not limits.hold(errors):
                detail = (
                    f"{name} is off by {errors.max:.2e} (limit {limits.max:.2e}), "
                    f"RMS {errors.rms:.2e} (limit {limits.rms:.2e})"
                )
                failed = dataclasses.replace(check, status="failed", detail=detail)
                verdict.fail(OutcomeKind.WRONG_RESULT, failed)
            else:
                verdict.checks.append(check)

    @staticmethod
    def _judge_damage(
        case: Case,
        kind: str,
        evidence: Evidence,
        findings: Findings,
        *,
        verdict: Verdict,
        when: str = "",
    ) -> None:
        if not (findings.damaged and verdict.passed):
            return
        damage = evidence.inspection.damage()
        outcome = OutcomeKind.OUT_OF_BOUNDS
        if not damage:
            outcome = OutcomeKind.WRONG_RESULT
            damage = (
                f"left workspace {evidence.inspection.not_zeroed()} (zero_once) other than zero"
            )
        verdict.fail(outcome, Check(case.label, kind, "failed", detail=damage + when))
