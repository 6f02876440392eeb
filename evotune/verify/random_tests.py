"""Random tests of a champion: many further shapes, each on one kind of inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from evotune.problems.problem import Case
from evotune.trial import Check
from evotune.verify._far import NoRoom
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.kept_checks import ALL_KINDS, nearest_limit

_LONGEST = 4  # times the limit, by the wall clock


class TimeLimit:
    """`limit_s` of this thread's own work, so that other work on the machine takes no test away.
    By the clock it may last four times as long, and no longer than `longest_s`."""

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
    subjects: Sequence[Subject],
    kinds: Callable[[Case, int], Sequence[str]],
    seed: int,
    verdict: Verdict,
    *,
    limit_s: float,
    longest_s: float = math.inf,
    begins: Callable[[int], None] = lambda number: None,
) -> list[Case]:
    """Run the tests and return the cases that passed. Adds one check for all: the nearest to its
    limit. Cases whose tensors find no memory are left out.

    `kinds` gives the input kinds of a test, by its number and case. After `limit_s` of work, or
    after `longest_s`, no further test starts, and the check says how many were made. The first
    failure ends them and goes into the verdict in detail. `begins` is called before each test with
    its number, from 1 on.
    """
    if not (subjects and verdict.passed):
        return []
    name = f"{len(subjects)} random tests"
    limit = TimeLimit(limit_s, longest_s)
    within = f"within {min(limit_s, longest_s):.2g} s"
    made = Verdict()
    passed: list[Case] = []
    no_room = ""
    for index, subject in enumerate(subjects):
        if limit.is_over():
            break
        begins(index + 1)
        try:
            gate.examine(subject, kinds(subject.case, index), seed, made)
        except NoRoom as error:
            no_room = no_room or f"no memory for some, such as {error}"
            continue
        if made.kind is not None:
            failed = made.checks[-1]
            detail = f"{failed.detail} (random test {index + 1} of {len(subjects)})"
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
