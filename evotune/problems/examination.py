"""Tries a user's problem once, on a tiny shape, before a run relies on it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from evotune.errors import ProblemMistake
from evotune.problems._repeatability import repeatability
from evotune.problems.problem import Case, Problem
from evotune.problems.user import UserProblem

_MOST_BYTES = 64 << 20
_QUICK = (1 << 27, 1 << 22)  # operations and bytes


def tiny_case(problem: UserProblem, cases: Sequence[Case]) -> Case:
    """The smallest of the given cases and their edge cases. If possible not all its extents are 1:
    then a wrong shape would look like the right one."""
    known = [*cases, *(edge for case in cases for edge in problem.edge_cases(case))]

    def rank(case: Case) -> tuple[bool, int]:
        distinct = {shape for spec in problem.tensors(case) for shape in spec.shape}
        return distinct == {1}, sum(math.prod(spec.shape) for spec in problem.tensors(case))

    return min(known, key=rank)


def smallest_case(problem: UserProblem, cases: Sequence[Case]) -> Case | None:
    """The smallest of the given cases; None where its tensors take more than 64 MiB."""

    def size(case: Case) -> int:
        return sum(spec.nbytes for spec in problem.tensors(case))

    found = min(cases, key=size)
    return found if size(found) <= _MOST_BYTES else None


def baselines_of(problem: UserProblem, case: Case) -> tuple[str, ...]:
    """The names of the baselines on a CPU. None of them is called."""
    return tuple(problem.baselines(case, problem.make_inputs(case, "normal", 0, "cpu")))


def ordinary_case(problem: UserProblem, cases: Sequence[Case]) -> Case:
    """The largest of the given cases and their edge cases that computes in a moment; the tiny one
    if none does. Among its many elements a few that differ by chance will show."""
    known = [*cases, *(edge for case in cases for edge in problem.edge_cases(case))]
    quick = [
        c for c in known if problem.flops(c) <= _QUICK[0] and problem.bytes_moved(c) <= _QUICK[1]
    ]
    return max(quick, key=problem.bytes_moved, default=tiny_case(problem, cases))


def examine(
    problem: UserProblem,
    case: Case,
    device: str = "cpu",
    *,
    timed: bool = True,
    ordinary: Case | None = None,
) -> tuple[str, ...]:
    """Calls every method that the user wrote, on `case`; ProblemMistake for the first mistake.
    Returns warnings, a line each. `ordinary`: a case of ordinary sizes, on which the methods are
    called again to see that they repeat their results.

    Without `timed`, `device` is not the device of the measurements: an operation that PyTorch
    refuses there, half precision for example, is no mistake, and no baseline is called.
    """
    inputs = problem.make_inputs(case, "normal", 0, device)
    reference = problem.checked_reference(case, inputs)
    method = "compute" if type(problem).reference is UserProblem.reference else "reference"
    problem.written.check_finite(method, reference, case.label)
    for kind in problem.input_kinds:
        problem.make_inputs(case, kind, 0, device)
    with contextlib.suppress(*(() if timed else (RuntimeError,))):
        problem.tolerances(case, inputs, reference)
        if timed:
            problem.check_baselines(case, inputs)
        else:
            problem.baselines(case, inputs)
    warnings: tuple[str, ...] = ()
    with contextlib.suppress(*(() if timed else (RuntimeError,))):
        warnings = repeatability(problem, ordinary or case, device)
    return warnings


def mistake_of(problem: Problem, error: BaseException) -> ProblemMistake | None:
    """The mistake in the problem's file behind an exception; None when there is none."""
    return problem.problem_file.mistake(error) if isinstance(problem, UserProblem) else None
