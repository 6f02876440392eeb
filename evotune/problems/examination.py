"""Tries a user's problem once, on a tiny shape, before a run relies on it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from evotune.errors import ProblemMistake
from evotune.problems.problem import Case, Problem
from evotune.problems.user import UserProblem


def tiny_case(problem: UserProblem, cases: Sequence[Case]) -> Case:
    """The smallest of the given cases and their edge cases. If possible not all its extents are 1:
    then a wrong shape would look like the right one."""
    known = [*cases, *(edge for case in cases for edge in problem.edge_cases(case))]

    def rank(case: Case) -> tuple[bool, int]:
        distinct = {shape for spec in problem.tensors(case) for shape in spec.shape}
        return distinct == {1}, sum(math.prod(spec.shape) for spec in problem.tensors(case))

    return min(known, key=rank)


def examine(
    problem: UserProblem, case: Case, device: str = "cpu", *, timed: bool = True
) -> tuple[str, ...]:
    """Calls every method that the user wrote, on `case`; ProblemMistake for the first mistake.
    Returns the names of the baselines.

    Without `timed`, `device` is not the device of the measurements: an operation that PyTorch
    refuses there, half precision for example, is no mistake, no baseline is called, and no name is
    returned, since the device may have other ones.
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
            return tuple(problem.baselines(case, inputs))
        problem.baselines(case, inputs)
    return ()


def mistake_of(problem: Problem, error: BaseException) -> ProblemMistake | None:
    """The mistake in the problem's file behind an exception; None when there is none."""
    return problem.problem_file.mistake(error) if isinstance(problem, UserProblem) else None
