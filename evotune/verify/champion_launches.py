"""Launches of a champion beyond its measured and edge cases.

These are random tests, launches at the sizes that a package could serve, and launches on inputs
that are aligned as little as a package accepts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec
import torch

from evotune.backends.base.session import Disturb, LaunchFailure, Session
from evotune.problems.problem import Case, Problem
from evotune.problems.short_cases import short_kinds
from evotune.trial import Check, OutcomeKind
from evotune.verify.buffers import LEAST_ALIGNMENT, NoRoom, bits
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.kept_checks import ALL_KINDS, nearest_limit
from evotune.verify.pool import InputPool

_LONGEST = 4  # times the limit, by the wall clock
_LARGE, _BEYOND_FLOAT = 1 << 20, 1 << 24
"""Numbers of elements. A float32 counter is exact only up to the second number, so one test has a
larger input."""


def in_order(elements: Sequence[tuple[int, int]]) -> list[int]:
    """The order in which to run tests, as indices into `elements`, because there may be no time for
    all: first one test with an input of more than 2^24 elements, then the tests with at most 2^20
    elements in all, then the other large ones.

    `elements`: for each test, the elements of its largest input and of all its tensors.
    """
    numbers = range(len(elements))
    beyond = [n for n in numbers if elements[n][0] > _BEYOND_FLOAT][:1]
    small = [n for n in numbers if elements[n][1] <= _LARGE]
    first = {*beyond, *small}
    return [*beyond, *small, *(n for n in numbers if n not in first)]


class TimeLimit:
    """A limit of `limit_s` on this thread's own CPU time, so that other work on the machine does
    not reduce the number of tests. By the wall clock it may last four times as long, but at most
    `longest_s`."""

    def __init__(self, limit_s: float, longest_s: float = math.inf) -> None:
        self._limit_s = limit_s
        self._longest_s = min(longest_s, _LONGEST * limit_s)
        self._worked_s, self._started_s = time.thread_time(), time.monotonic()

    def is_over(self) -> bool:
        worked_s = time.thread_time() - self._worked_s
        passed_s = time.monotonic() - self._started_s
        return worked_s >= self._limit_s or passed_s >= self._longest_s


def run_random_tests(
    gate: Gate,
    subjects: Sequence[tuple[int, Subject]],
    kinds: Callable[[Case, int], Sequence[str]],
    seed: int,
    verdict: Verdict,
    *,
    limit_s: float,
    longest_s: float = math.inf,
    begins: Callable[[int], None] = lambda number: None,
) -> list[Case]:
    """Runs the numbered tests and returns the cases that passed. Adds one check for all tests, the
    one nearest to its limit. Cases whose tensors do not fit into memory are left out.

    `kinds(case, number)` returns the input kinds of a test. After `limit_s` of work, or after
    `longest_s`, no more tests start, and the check says how many were made. The first failure ends
    the tests and goes into the verdict in detail. `begins` is called before each test with its
    position, from 1 on.
    """
    if not (subjects and verdict.passed):
        return []
    name = f"{len(subjects)} random tests"
    limit = TimeLimit(limit_s, longest_s)
    within = f"within {min(limit_s, longest_s):.2g} s"
    made = Verdict()
    passed: list[Case] = []
    no_room = ""
    for place, (number, subject) in enumerate(subjects, 1):
        if limit.is_over():
            break
        begins(place)
        try:
            gate.examine(subject, kinds(subject.case, number), seed, made)
        except NoRoom as error:
            no_room = no_room or f"no memory for some, such as {error}"
            continue
        if made.kind is not None:
            failed = made.checks[-1]
            detail = f"{failed.detail} (random test {number + 1} of {len(subjects)})"
            verdict.fail(made.kind, msgspec.structs.replace(failed, detail=detail))
            return passed
        passed.append(subject.case)
    if not passed:
        detail = no_room or f"none began {within}"
        verdict.checks.append(Check(name, ALL_KINDS, "skipped", detail=detail))
        return []
    detail = ""
    if len(passed) < len(subjects):
        words = (f"{len(passed)} were made {within}", no_room)
        detail = "; ".join(filter(None, words))
    summary = msgspec.structs.replace(
        nearest_limit(made.checks), case=name, inputs=ALL_KINDS, detail=detail
    )
    verdict.checks.append(summary)
    return passed


def launch_served(
    gate: Gate,
    problem: Problem,
    subjects: Sequence[Subject],
    seed: int,
    verdict: Verdict,
    *,
    limit_s: float,
    longest_s: float = math.inf,
    together: int = 1,
    without: Collection[str] = (),
    begins: Callable[[int], None] = lambda number: None,
) -> list[Case]:
    """Launches each case once, and returns the cases that passed. Adds one check for all launches,
    the one nearest to its limit.

    Inputs have the least alignment that a package serves. The evidence of `together` launches is
    read at once. After `limit_s` of work, or after `longest_s`, no more launches start, and the
    check says how many were made. The first failure ends them and goes into the verdict. `begins`
    is called with the number of the next launch, from 1 on.
    """
    if not (subjects and verdict.passed):
        return []
    name = f"{len(subjects)} served sizes"
    limit = TimeLimit(limit_s, longest_s)
    within = f"within {min(limit_s, longest_s):.2g} s"
    made = Verdict()
    passed: list[Case] = []
    for start in range(0, len(subjects), together):
        if limit.is_over():
            break
        begins(start + 1)
        some = subjects[start : start + together]
        kinds = [short_kinds(problem, each.case, start + n) for n, each in enumerate(some)]
        for kind in dict.fromkeys(kind for each in kinds for kind in each if kind not in without):
            alike = [each for each, own in zip(some, kinds, strict=True) if kind in own]
            gate.examine_once(alike, kind, seed, made)
        if made.kind is not None:
            failed = made.checks[-1]
            detail = f"{failed.detail}, {WORDS} (a size that a package could serve)"
            verdict.fail(made.kind, msgspec.structs.replace(failed, detail=detail))
            return passed
        passed += [each.case for each in some]
    if not passed:
        detail = f"none began {within}"
        verdict.checks.append(Check(name, ALL_KINDS, "skipped", detail=detail))
        return []
    cut = f"{len(passed)} were launched {within}"
    verdict.checks.append(
        msgspec.structs.replace(
            nearest_limit(made.checks),
            case=name,
            inputs=ALL_KINDS,
            detail=cut if len(passed) < len(subjects) else "",
        )
    )
    return passed


WORDS = f"inputs at an alignment of {LEAST_ALIGNMENT} bytes"


def launch_aligned(
    gate: Gate,
    subjects: Sequence[Subject],
    kind: str,
    seed: int,
    verdict: Verdict,
    *,
    begins: Callable[[int], None] = lambda number: None,
) -> None:
    """Launches each case once, with every input at an odd multiple of 16 bytes. This finds a kernel
    whose vectors need more alignment: it would crash, or be wrong, on a view that a package serves.
    In other checks inputs begin at multiples of 256 bytes.

    Adds one check for all launches, the one nearest to its limit. The first failure ends the
    launches and goes into the verdict. `begins` is called with the number of the next launch, from
    1 on.
    """
    if not (subjects and verdict.passed):
        return
    made = Verdict()
    for number, subject in enumerate(subjects, 1):
        begins(number)
        gate.examine_once([subject], kind, seed, made, is_kept=True)
        if made.kind is not None:
            failed = made.checks[-1]
            detail = f"{failed.detail} ({WORDS})"
            verdict.fail(made.kind, msgspec.structs.replace(failed, detail=detail))
            return
    name = f"{len(subjects)} cases, {WORDS}"
    nearest = nearest_limit(made.checks)
    verdict.checks.append(msgspec.structs.replace(nearest, case=name, inputs=ALL_KINDS))


# Disturbed launches of a champion: all must leave the same bits.
#
# A race may never show by itself: warps and blocks that start together stay close, and hardware is
# fast. Other work during a kernel changes the times at which its parts run; other data in shared
# memory changes the values that they find there. A right result depends on neither.
CASE = "disturbed"
"""What checks of disturbed launches have in place of a case's name."""
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
        """Checks builds of the same kernels that disturb themselves: their results must be right
        and equal in every launch. Skips a build that needs more resources than the device has."""
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
        # Nothing may come between a disturbance and its launch, so `prepare` restores tensors.
        launch = self._session.bind(subject.kernel, subject.plan, buffers.pointers())
        launch()
        self._session.settle()
        expected = {name: bits(value) for name, value in buffers.snapshot().items()}
        differing: list[int] = []
        with enter() as disturb:
            while len(differing) < _LAUNCHES and time.monotonic() < deadline:
                counts = []
                for number in range(len(differing), len(differing) + _A_LOOK):
                    buffers.prepare()
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
