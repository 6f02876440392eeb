"""The gate: launches a kernel on every input kind and edge shape, on poisoned buffers, compares the
results, and repeats.

The harness allocates, launches and compares; a candidate is only the kernel's code.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from evotune.backends.base.launch import LaunchPlan
from evotune.backends.base.session import Sampler, Session
from evotune.errors import ProblemMistake
from evotune.problems.problem import Case, Problem, Tensors
from evotune.problems.user import UserProblem
from evotune.trial import ACCEPTED, TOO_NOISY, Check, OutcomeKind
from evotune.verify.accuracy import (
    LIMITS,
    Evidence,
    Findings,
    as_rows,
    gather,
    is_one_rounding,
    not_finite,
    read,
    worst_element,
)
from evotune.verify.buffers import (
    BufferSets,
    Inspection,
    bits,
    other_word,
    repeats,
    unwritten,
    writing,
)
from evotune.verify.pool import SHORT_CHANGES, InputPool, InputSet, elements_of, read_roundings
from evotune.verify.watch import Answer, Watch, Watched

_TOGETHER_BYTES = 64 << 20  # of inputs and outputs; a larger set is examined alone
_LEAST_ALTERED, _MOST_ALTERED = 4, 12  # launches in a row, each on other inputs
_AT_START = (512, 2048)
"""The least and the greatest number of a champion's first launches, which are all checked before
anything else."""
_LATER, _SECOND = " after its launch had returned", " in its second launch"
_TIMED = " while it was timed"


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
        self._latest: BufferSets | None = None

    def examine(self, subject: Subject, kinds: Sequence[str], seed: int, verdict: Verdict) -> None:
        """Examines a subject on input sets in fresh memory: launch, check, launch again, compare.
        On devices that run launches in order, several small sets are examined together."""
        case = subject.case
        nbytes = self._pool.set_bytes(case) + sum(w.bytes for w in subject.plan.workspaces)
        together = max(1, _TOGETHER_BYTES // max(1, nbytes)) if self._session.in_order else 1
        for start in range(0, len(kinds), together):
            if verdict.passed:
                self._examine(subject, kinds[start : start + together], seed, verdict)

    def examine_once(
        self,
        subjects: Sequence[Subject],
        kind: str,
        seed: int,
        verdict: Verdict,
        *,
        is_kept: bool = False,
    ) -> None:
        """Launches each subject once in fresh memory, on inputs of one kind, and reads the evidence
        of all launches together. Stops at the first failure. Inputs have the least alignment that a
        package serves. `is_kept`: the pool keeps the input sets, because other checks use them too.
        """
        launched: list[tuple[Subject, InputSet, Evidence]] = []
        memory: list[BufferSets] = []  # no two launches share addresses
        for subject in subjects:
            made = self._pool.get if is_kept else self._pool.once
            inputs = made(subject.case, kind, seed)
            buffers = self.buffers(subject, [inputs], is_least_aligned=True)
            memory.append(buffers)
            self._launch(self.bind(subject, buffers, 0))
            evidence = self.look(buffers, buffers.snapshot(), buffers.inspect(), [inputs])
            launched.append((subject, inputs, dataclasses.replace(evidence, flags={})))
        found = read([evidence for *_, evidence in launched])
        for (subject, inputs, _), (findings,) in zip(launched, found, strict=True):
            if verdict.passed:
                self._judge(subject.case, kind, findings, inputs, verdict)

    def _examine(self, subject: Subject, kinds: Sequence[str], seed: int, verdict: Verdict) -> None:
        case = subject.case
        inputs = [self._pool.get(case, kind, seed) for kind in kinds]
        buffers = self.buffers(subject, inputs)
        launches = [self.bind(subject, buffers, number) for number in range(len(kinds))]
        again = [
            functools.partial(self._launch_among, buffers, number, launch, other_word(kind, seed))
            for number, (kind, launch) in enumerate(zip(kinds, launches, strict=True))
        ]
        first, inspection = self._launch_each(buffers, launches, again)
        evidence = [self.look(buffers, first, inspection, inputs)]
        if not self._deterministic:
            evidence.append(Evidence(buffers.inspect()))
            found, left = read(evidence)
            self._judge_first(case, kinds, found, inputs, verdict)
            for kind, each in zip(kinds, left, strict=True):
                self._judge_damage(case, kind, each, verdict, when=_LATER)
            self._follow(subject, buffers, kinds[0], inputs[0], verdict)
            return
        if not self._session.in_order:
            (launch,) = again
            launch()
        second = buffers.outputs()
        differing = {name: bits(value) != bits(first[name]) for name, value in second.items()}
        flags = {name: as_rows(elements).any(dim=1) for name, elements in differing.items()}
        evidence.append(Evidence(buffers.inspect(), flags=flags))
        found, found_again = read(evidence)
        # Wrong results are judged first: a kernel that uses the inputs of the launch before is
        # wrong, but its two launches differ as well.
        self._judge_first(case, kinds, found, inputs, verdict)
        for number, (kind, of_second) in enumerate(zip(kinds, found_again, strict=True)):
            self._judge_damage(case, kind, of_second, verdict, when=_SECOND)
            name = next((name for name, flag in of_second.flags.items() if flag), "")
            if verdict.passed and name:
                count = int(differing[name][number].sum())
                detail = f"{count} elements of {name} differ between two equal launches"
                outcome = OutcomeKind.NONDETERMINISTIC
                output = buffers.outputs()[name][number]
                launch = functools.partial(self._launch, launches[number])
                if repeats(output, first[name][number], again[number], launch):
                    detail = f"{count} elements of {name} change with what lies outside all tensors"
                    outcome = OutcomeKind.OUT_OF_BOUNDS
                verdict.fail(outcome, Check(case.label, kind, "failed", detail=detail))
        self._follow(subject, buffers, kinds[0], inputs[0], verdict)

    def _follow(
        self, subject: Subject, buffers: BufferSets, kind: str, inputs: InputSet, verdict: Verdict
    ) -> None:
        """Launches on the result of a launch, as a program does, which restores nothing. A kernel
        may take tensors that it has updated for ones that are done."""
        is_normal = kind == self._problem.input_kinds[0]
        if not (buffers.has_updates and verdict.passed and is_normal):
            return
        self._launch(self.bind(subject, buffers, 0))
        updated = {name: value[0].clone() for name, value in buffers.updated().items()}
        following = self._pool.following(subject.case, {**inputs.inputs, **updated})
        if following is None:
            return
        self._launch(self._session.bind(subject.kernel, subject.plan, buffers.pointers(0)))
        one = buffers.only(0)
        evidence = gather(one.inspect(), one.snapshot(), _each(following.expected))
        ((found,),) = read([evidence])
        self._judge(subject.case, f"updated {kind}", found, following, verdict)

    def _launch_each(
        self,
        buffers: BufferSets,
        launches: Sequence[Callable[[], object]],
        again: Sequence[Callable[[], object]],
    ) -> tuple[Tensors, Inspection]:
        """Launches on prepared outputs, keeps their copies and the forbidden writes, and prepares
        them again. If launches are in order, the second launch follows for comparison."""
        if len(launches) == 1:  # there may be no memory for another copy of its inputs and scratch
            self._launch(launches[0])
            outputs = buffers.snapshot()
            buffers.prepare()  # at once, so that later writes show
            inspection = buffers.inspect()
            self._launch_again(again[0])
            return outputs, inspection
        copies = buffers.room()
        for number, launch in enumerate(launches):
            self._launch(launch)
            copies.copy(buffers, number)
            buffers.prepare(number)
            # The equal launch follows at once, so that a kernel that works by turns differs.
            self._launch_again(again[number])
        return copies.outputs(), copies.inspect()

    def _launch_again(self, launch: Callable[[], object]) -> None:
        if self._deterministic and self._session.in_order:
            launch()

    def _launch_among(
        self, buffers: BufferSets, number: int, launch: Callable[[], object], word: int
    ) -> None:
        """Launch while `word` lies outside all tensors: not all that read it show NaN."""
        with buffers.guards(number).holding(word):
            self._launch(launch)

    def _judge_first(
        self,
        case: Case,
        kinds: Sequence[str],
        found: Sequence[Findings],
        inputs: Sequence[InputSet],
        verdict: Verdict,
    ) -> None:
        """Judge the first launch of each kind: its result, and writes after it had returned."""
        read_roundings(inputs)
        for kind, each, values in zip(kinds, found, inputs, strict=True):
            self._judge(case, kind, each, values, verdict)
            late = next((name for name, intact in each.flags.items() if not intact), "")
            if verdict.passed and late:
                detail = f"wrote {late} after its launch had returned"
                failed = Check(case.label, kind, "failed", detail=detail)
                verdict.fail(OutcomeKind.LAUNCH_ERROR, failed)

    def replay(
        self,
        subject: Subject,
        timed: Sampler,
        placed: BufferSets,
        seed: int,
        verdict: Verdict,
        *,
        how: str = "replayed",
    ) -> None:
        """Checks the timed launches after timing: puts new inputs into the same memory, poisons the
        outputs and runs the sampler again. `placed` has all timed buffers; `how` describes the
        timing for the record."""
        if not verdict.passed:
            return
        case = subject.case
        timed_so_far = Evidence(placed.inspect())
        inputs = self._pool.get(case, "normal", seed)
        placed.overwrite_inputs(inputs.inputs)
        placed.prepare()
        timed.run()
        self._session.settle()
        evidence = gather(placed.inspect(), placed.snapshot(), _each(inputs.expected))
        before, after = read([timed_so_far, evidence])
        for found in before:
            self._judge_damage(case, "normal", found, verdict, when=_TIMED)
        for found in after:
            self._judge(case, f"{how} normal", found, inputs, verdict)

    def alter(
        self,
        subject: Subject,
        placed: BufferSets,
        seed: int,
        verdict: Verdict,
        *,
        draw: int = 0,
    ) -> None:
        """Checks a row of launches on one timed buffer, which holds the inputs of `seed`. Before
        each launch a part of an input changes; outputs are not cleared. Each launch must be right.
        So a kernel fails if it skips every few launches, or skips work when its outputs are already
        written. Restores the inputs. `draw` numbers the random draws.
        """
        if not verdict.passed:
            return
        rng = self._draws(subject.case, "alter", draw)
        number = rng.randrange(len(placed))
        timed_so_far = Evidence(placed.inspect())
        row = self._altered_row(subject, placed, number, seed, rng)
        self._judge_row(subject.case, row, verdict, "altered in place", timed_so_far)

    def start(
        self, subject: Subject, seed: int, verdict: Verdict, *, limit_s: float, draw: int = 0
    ) -> None:
        """Checks each of a random number of first launches in a fresh process: an input changes
        before each one, and outputs are not cleared. A kernel that counts its launches and skips
        some of them fails here. No other check compares the outputs of every launch."""
        if not verdict.passed:
            return
        case, rng = subject.case, self._draws(subject.case, "start", draw)
        buffers = self.buffers(subject, [self._pool.get(case, "normal", seed)])
        row = self._altered_row(subject, buffers, 0, seed, rng)
        left = rng.randint(*_AT_START)
        deadline = time.monotonic() + limit_s
        while left > 0 and verdict.passed and time.monotonic() < deadline:
            self._judge_row(case, row, verdict, "altered from the start")
            left -= len(row.sets)

    def _draws(self, case: Case, purpose: str, draw: int) -> random.Random:
        return random.Random(self._pool.stream(case, purpose, draw))

    def _altered_row(
        self, subject: Subject, placed: BufferSets, number: int, seed: int, rng: random.Random
    ) -> AlteredRow:
        buffers, launch = placed.only(number), self.bind(subject, placed, number)
        output_bytes = sum(value.nbytes for value in buffers.outputs().values())
        count = max(_LEAST_ALTERED, min(_MOST_ALTERED, _TOGETHER_BYTES // output_bytes))
        sets = self._altered_sets(subject.case, seed, count, rng)
        return AlteredRow(self._session, launch, buffers, sets)

    def _altered_sets(
        self, case: Case, seed: int, count: int, rng: random.Random
    ) -> list[InputSet]:
        """Order the sets: the normal one last, and no two neighbours that rounding could make look
        the same (one of them has a long row of other elements). If there is room, each input also
        changes alone: a kernel may reread it only when another one has changed."""
        normal, changed = self._pool.get(case, "normal", seed), self._pool.changed(case, seed)
        long, short = changed[:-SHORT_CHANGES], changed[-SHORT_CHANGES:]
        row = [each for one in rng.sample(long, len(long)) for each in (one, normal)]
        while len(row) < count:
            row += [rng.choice(long), rng.choice([normal, *short])]
        return [*row[: count - 1 - count % 2], normal]

    def _judge_row(
        self, case: Case, row: AlteredRow, verdict: Verdict, kind: str, *earlier: Evidence
    ) -> None:
        """Run the row and judge each launch. `earlier`: evidence of the timed launches."""
        outputs = row.run()
        self._session.settle()
        names = row.sets[0].expected
        wanted = {name: torch.stack([e.expected[name] for e in row.sets]) for name in names}
        found = read([*earlier, Evidence(row.buffers.inspect()), gather(None, outputs, wanted)])
        *before, after, evidence = found
        for damage in (each for findings in before for each in findings):
            self._judge_damage(case, "normal", damage, verdict, when=_TIMED)
        self._judge_damage(case, kind, after[0], verdict)
        for inputs, each in zip(row.sets, evidence, strict=True):
            self._judge(case, kind, each, inputs, verdict)

    def judge_watched(self, case: Case, watched: Sequence[Watched], verdict: Verdict) -> None:
        """Judges the evidence of watched runs."""
        if not (watched and verdict.passed):
            return
        for each, found in zip(watched, read([each.evidence for each in watched]), strict=True):
            for inputs, row, counts in zip(each.inputs, found, each.counts, strict=True):
                if counts:
                    self._judge(case, "watched", row, inputs, verdict)

    def bind(self, subject: Subject, buffers: BufferSets, number: int) -> Callable[[], object]:
        """A launch on that set, each time on the values of tensors that it updates."""
        launch = self._session.bind(subject.kernel, subject.plan, buffers.pointers(number))
        return buffers.restoring(number, launch)

    def _launch(self, launch: Callable[[], object]) -> None:
        launch()
        self._session.settle()

    def buffers(
        self, subject: Subject, inputs: Sequence[InputSet], *, is_least_aligned: bool = False
    ) -> BufferSets:
        """Allocates fresh memory for each set, at other addresses than those of earlier sets."""
        specs = self._problem.tensors(subject.case)
        device = self._session.torch_device
        # The previous sets are still held here, so the allocator cannot use their addresses.
        values = [each.inputs for each in inputs]
        self._latest = BufferSets(
            *(specs, subject.plan, values, device),
            is_least_aligned=is_least_aligned,
            memory=self._session.memory,
        )
        return self._latest

    def look(
        self,
        buffers: BufferSets,
        outputs: Tensors,
        inspection: Inspection,
        inputs: Sequence[InputSet],
    ) -> Evidence:
        """Returns the evidence of launches whose results are `outputs`. If launches may leave
        threads running, the buffers' outputs must have been poisoned again after the launches
        returned. Writes to them that appear before the errors have been computed are then a
        failure."""
        if len(inputs) == 1:
            expected = _each(inputs[0].expected)  # a copy of a large case costs too much memory
        else:
            expected = {
                name: torch.stack([each.expected[name] for each in inputs])
                for name in inputs[0].expected
            }
        evidence = gather(inspection, outputs, expected)
        if self._session.in_order:
            return evidence
        intact = {name: as_rows(mask).all(dim=1) for name, mask in buffers.untouched().items()}
        return dataclasses.replace(evidence, flags=intact)

    def _judge(
        self, case: Case, kind: str, found: Findings, inputs: InputSet, verdict: Verdict
    ) -> None:
        """Require intact guards and inputs, full outputs, no NaN, errors within the limits, or what
        the problem itself accepts."""
        self._judge_damage(case, kind, found, verdict)
        if inputs.answer and verdict.passed:
            self._judge_accepted(case, kind, found, inputs, verdict)
        for name, errors in found.errors.items():
            if not verdict.passed:
                return
            check = Check(
                case.label,
                kind,
                "passed",
                max_error=errors.max,
                max_limit=LIMITS.max,
                rms_error=errors.rms,
                rms_limit=LIMITS.rms,
                rounding=is_one_rounding(errors.max) and name in inputs.rounded,
            )
            # Finite errors imply a finite output, without another read from the device.
            output = found.output(name)
            finite = math.isfinite(errors.max) and math.isfinite(errors.rms)
            bad = 0 if finite else not_finite(output, inputs.expected[name])
            if bad:
                self._fail_not_finite(case, kind, name, output, bad, verdict)
            elif not LIMITS.hold(errors):
                worst = worst_element(output, inputs.expected[name])
                detail = (
                    f"{name} is off by {worst.error:.2e} (limit {worst.tolerance:.2e} for that "
                    f"element), {name}{worst}; RMS of errors / limits {errors.rms:.2e} "
                    f"(limit {LIMITS.rms:g})"
                )
                failed = msgspec.structs.replace(check, status="failed", detail=detail)
                verdict.fail(OutcomeKind.WRONG_RESULT, failed)
            else:
                verdict.checks.append(check)

    def _judge_accepted(
        self, case: Case, kind: str, found: Findings, inputs: InputSet, verdict: Verdict
    ) -> None:
        """The same of a problem that judges outputs itself."""
        assert isinstance(self._problem, UserProblem)
        outputs = {name: found.output(name) for name in inputs.answer}
        for name, output in outputs.items():
            bad = int((~output.double().isfinite()).sum()) if output.is_floating_point() else 0
            if bad:
                self._fail_not_finite(case, kind, name, output, bad, verdict)
                return
        try:
            why = self._problem.refusal(case, outputs, dict(inputs.answer), dict(inputs.inputs))
        except ProblemMistake as mistake:
            if isinstance(mistake, RuntimeError) and self._session.fault(mistake) is not None:
                raise
            why = f"same raised an exception: {mistake}"  # these outputs may be the cause
        check = Check(case.label, kind, "passed", detail=ACCEPTED)
        if why:
            for name, output in outputs.items():
                never = int(unwritten(output).sum())
                why += f"; {never} elements of {name} were never written" if never else ""
            failed = msgspec.structs.replace(check, status="failed", detail=why)
            verdict.fail(OutcomeKind.WRONG_RESULT, failed)
        else:
            verdict.checks.append(check)

    @staticmethod
    def _fail_not_finite(  # noqa: PLR0917
        case: Case, kind: str, name: str, output: torch.Tensor, bad: int, verdict: Verdict
    ) -> None:
        never = int(unwritten(output).sum())
        detail = f"{bad} of {output.numel()} elements of {name} are NaN or infinite"
        if never:
            detail += f", {never} of them never written"
        verdict.fail(OutcomeKind.NAN, Check(case.label, kind, "failed", detail=detail))

    @staticmethod
    def _judge_damage(
        case: Case, kind: str, found: Findings, verdict: Verdict, *, when: str = ""
    ) -> None:
        if not (found.damaged and verdict.passed):
            return
        damage = found.damage()
        outcome = OutcomeKind.OUT_OF_BOUNDS
        if not damage:
            outcome = OutcomeKind.WRONG_RESULT
            damage = f"left workspace {found.not_zeroed()} (zero_once) other than zero"
        verdict.fail(outcome, Check(case.label, kind, "failed", detail=damage + when))


def _each(expected: Mapping[str, torch.Tensor]) -> Tensors:
    """The expected tensors with one row, which holds for every set of buffers."""
    return {name: value[None] for name, value in expected.items()}


class AlteredRow:
    """A row with one launch on each of `sets`, which can be run repeatedly. Before the row the
    inputs hold the last set. The other sets are variants of the last one. Outputs are not cleared
    between launches."""

    def __init__(
        self,
        session: Session,
        launch: Callable[[], object],
        buffers: BufferSets,
        sets: Sequence[InputSet],
    ) -> None:
        self.buffers, self.sets = buffers, sets
        outputs = buffers.outputs()
        self._copies = {
            name: torch.empty((len(sets), *value.shape[1:]), dtype=value.dtype, device=value.device)
            for name, value in outputs.items()
        }
        calls: list[Callable[[], object]] = []
        writes: list[Callable[[], object]] = []
        for number, (before, wanted) in enumerate(zip([sets[-1], *sets[:-1]], sets, strict=True)):
            changed = [
                writing(
                    elements_of(wanted, each),
                    buffers.elements(each.name, each.place, len(each.values))[0],
                )
                for each in (*before.alterations, *wanted.alterations)
            ]
            copying = [
                functools.partial(self._copies[name][number].copy_, value[0])
                for name, value in outputs.items()
            ]
            calls += [*changed, launch, *copying]
            writes = [*changed, *copying] or writes
        for call in writes:  # a call must have run before a GPU's graph captures it
            call()
        self._sampler = session.sampler(calls)

    def run(self) -> Tensors:
        """Runs the row. Returns copies of each launch's outputs; the next run overwrites them."""
        self._sampler.run()
        return self._copies


# Checks of a candidate's timed launches that take longer: the more its time matters, the more.
_AUDITED_RUNS, _AUDIT_S, _READ_AFTER, _REUSE_ASKED = 200, 4.0, 20, 5


def watch_long_rows(gate: Gate, case: Case, watch: Watch, verdict: Verdict) -> None:
    """Watches rows of more launches than a sample has."""
    if verdict.passed:
        watch.run_long()
        gate.judge_watched(case, watch.take(), verdict)
        watch.settle()


def audit(gate: Gate, case: Case, watch: Watch, verdict: Verdict) -> None:
    """Examines a candidate whose time is hard to believe, with as many watched runs as there is
    time for, and repeated checks of `reuse`."""
    deadline = time.monotonic() + _AUDIT_S
    runs = 0
    while verdict.passed and runs < _AUDITED_RUNS and time.monotonic() < deadline:
        watch.run()
        runs += 1
        if watch.is_full or runs % _READ_AFTER == 0:
            gate.judge_watched(case, watch.take(), verdict)
    gate.judge_watched(case, watch.take(), verdict)
    watch.settle()
    for _ in range(_REUSE_ASKED):
        reuse(case, watch, verdict)
    if verdict.passed:
        detail = f"{runs} more runs of the timed launches were watched"
        verdict.checks.append(Check(case.label, "audited", "passed", detail=detail))


def reuse(case: Case, watch: Watch, verdict: Verdict) -> None:
    """Checks whether launches take longer while their inputs change, as those of a kernel that
    caches results do. Needed only for times that matter. If the machine is too noisy to tell, the
    verdict is undecided."""
    words, sure = watch.reuse() if verdict.passed else Answer()
    if words and sure:
        check = Check(case.label, "changing", "failed", detail=f"a launch {words}")
        verdict.fail(OutcomeKind.TOO_FAST, check)
    elif words:
        detail = f"{TOO_NOISY}: a launch {words}, but not each time it was asked"
        verdict.fail(OutcomeKind.UNDECIDED, Check(case.label, "changing", "skipped", detail=detail))
