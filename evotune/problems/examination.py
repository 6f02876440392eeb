"""Tries a user's problem once, on a tiny shape, before a run relies on it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from evotune.errors import ProblemMistake
from evotune.problems.problem import Case, Problem, Tensors, comparable, is_rounded
from evotune.problems.user import UserProblem
from evotune.problems.written import STRUCTURED

if TYPE_CHECKING:
    import torch


_MOST_BYTES = 64 << 20
_QUICK = (1 << 27, 1 << 22)  # operations and bytes


def tiny_case(problem: UserProblem, cases: Sequence[Case]) -> Case:
    """The smallest of the given cases and their edge cases. If possible some extent is not 1,
    because with only ones a wrong shape would look like the right one."""
    known = [*cases, *(edge for case in cases for edge in problem.edge_cases(case))]

    def rank(case: Case) -> tuple[bool, int]:
        distinct = {shape for spec in problem.tensors(case) for shape in spec.shape}
        return distinct == {1}, sum(math.prod(spec.shape) for spec in problem.tensors(case))

    return min(known, key=rank)


def smallest_case(problem: UserProblem, cases: Sequence[Case]) -> Case | None:
    """The smallest of the given cases; None if its tensors take more than 64 MiB."""

    def size(case: Case) -> int:
        return sum(spec.nbytes for spec in problem.tensors(case))

    found = min(cases, key=size)
    return found if size(found) <= _MOST_BYTES else None


def baselines_of(problem: UserProblem, case: Case) -> tuple[str, ...]:
    """The names of the baselines on a CPU. Calls none of them."""
    return tuple(problem.baselines(case, problem.make_inputs(case, "normal", 0, "cpu")))


def ordinary_case(problem: UserProblem, cases: Sequence[Case]) -> Case:
    """The largest of the given cases and their edge cases that computes in a moment; the tiny case
    if none does. With many elements it shows a method whose results differ in only a few of them.
    """
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
    """Calls every method that the user wrote, on `case`. Raises ProblemMistake for the first
    mistake. Returns warnings, a line each. `ordinary`: a case of ordinary sizes, on which the
    methods are called again to see that they repeat their results.

    Without `timed`, `device` is not the device of the measurements: an operation that PyTorch
    refuses there, half precision for example, is no mistake, and no baseline is called.
    """
    inputs = problem.make_inputs(case, "normal", 0, device)
    reference = problem.checked_reference(case, inputs)
    method = "compute" if type(problem).reference is UserProblem.reference else "reference"
    problem.written.check_finite(method, reference, case.label)
    for kind in problem.input_kinds:
        problem.make_inputs(case, kind, 0, device)
    if problem.has_same:
        from evotune.problems.accepted_answers import check_same

        check_same(problem, ordinary or case, device)
    with contextlib.suppress(*(() if timed else (RuntimeError,))):
        tolerances = problem.tolerances(case, inputs, reference)
        if problem.tolerance is not None:
            _check_tolerance(problem, reference, tolerances)
        if timed:
            problem.check_baselines(case, inputs)
        else:
            problem.baselines(case, inputs)
    warnings: tuple[str, ...] = ()
    with contextlib.suppress(*(() if timed else (RuntimeError,))):
        warnings = repeatability(problem, ordinary or case, device)
    return warnings


def _check_tolerance(problem: UserProblem, reference: Tensors, tolerances: Tensors) -> None:
    """Raises ProblemMistake if a kernel that writes zeros would pass the problem's own
    tolerance."""
    for name, value in reference.items():
        size = comparable(value).double().abs()
        if bool((size > 0).any()) and bool((size <= comparable(tolerances[name])).all()):
            message = f"tolerance accepts zeros for all of {name}, for normal inputs"
            raise problem.written.mistake("tolerance", message)


def mistake_of(problem: Problem, error: BaseException) -> ProblemMistake | None:
    """The mistake in the problem's file behind an exception; None if there is none."""
    return problem.problem_file.mistake(error) if isinstance(problem, UserProblem) else None


_SEEDS = (0, 1)
_CALLS = 4
_SAME = 1e-4
"""The share of a tolerance by which two results of one computation may differ. Sums in float64 that
several threads add up differ by a millionth of it, and random numbers by far more."""
_SAME_YARDSTICK = 0.25
"""The same for `yardstick_of`: twice its error is part of the tolerance. And for outputs in
float64, whose tolerance is a few roundings in float64."""
_SAME_INPUTS = 1e-6
"""The share of the largest value by which inputs of equal seeds may differ."""

_Call: TypeAlias = Callable[[Case, Tensors], Tensors]


def repeatability(problem: UserProblem, case: Case, device: str) -> tuple[str, ...]:
    """Raises ProblemMistake if a method returns different results for equal arguments, because
    there is no right answer then, and the tolerance would allow for the difference. Returns
    warnings about values that never vary, a line each."""
    _check_inputs(problem, case, device)
    inputs = problem.make_inputs(case, "normal", 0, device)
    _check_results(problem, case, inputs, device)
    return _constant(problem, case, device)


def _check_inputs(problem: UserProblem, case: Case, device: str) -> None:
    for kind in problem.input_kinds:
        first, second = (problem.make_inputs(case, kind, 0, device) for _ in range(2))
        for name, value in first.items():
            if not _alike(value, second[name]):
                method = _maker(problem, case, name)
                message = f"{method} gives different values of {name} for equal seeds"
                raise problem.written.mistake(method, f"{message}: draw them with the generator")


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal. Floating-point values may differ by the order of sums."""
    if not is_rounded(one.dtype):
        return bool((one == other).all())
    one, other = comparable(one).double(), comparable(other).double()
    size, off = one.abs(), one - other
    return bool((off.abs() <= _SAME_INPUTS * size.amax()).logical_or_(off.isnan()).all())


def _check_results(problem: UserProblem, case: Case, inputs: Tensors, device: str) -> None:
    from evotune.problems import user_torch

    calls: list[tuple[str, float, _Call]] = [("reference", _SAME, problem.checked_reference)]
    of_compute = functools.partial(UserProblem.reference, problem)
    if type(problem).reference is UserProblem.reference:
        calls = [("compute", _SAME, of_compute)]
    else:
        calls.append(("compute", _SAME, of_compute))  # the tolerances are its rounding errors
    # On a GPU a coarse sum may take another order each time.
    if device == "cpu" and type(problem).yardstick_of is not UserProblem.yardstick_of:
        yardstick = functools.partial(user_torch.yardstick, problem)
        calls.append(("yardstick_of", _SAME_YARDSTICK, yardstick))
    reference = problem.checked_reference(case, inputs)
    tolerances = problem.tolerances(case, inputs, reference)
    in_float64 = {spec.name for spec in problem.tensors(case) if spec.dtype == "float64"}
    for method, share, call in calls:
        first, *others = (call(case, inputs) for _ in range(_CALLS))
        for other, (name, value) in itertools.product(others, first.items()):
            off = comparable(value).double() - comparable(other[name]).double()
            allowed = comparable(tolerances[name])
            allowed = allowed * (_SAME_YARDSTICK if name in in_float64 else share)
            if not bool((off.abs().nan_to_num_(0.0) <= allowed).all()):
                found = f"{method} gives different results on equal inputs, in {name}"
                message = f"{found}, so there is no right answer to compare with"
                raise problem.written.mistake(method, message)


def _constant(problem: UserProblem, case: Case, device: str) -> tuple[str, ...]:
    method = "compute" if type(problem).reference is UserProblem.reference else "reference"
    described = problem.written.described("inputs", problem.sizes_of(case))
    kinds = itertools.product(problem.input_kinds, _SEEDS)
    sets = [problem.make_inputs(case, kind, seed, device) for kind, seed in kinds]
    still = _constant_in(sets)
    found = []
    for name in still:
        if described[name].values in (None, STRUCTURED):
            why = "a kernel that never reads it passes"
            message = f"make_input gives the same {name} for every seed and kind: {why}"
            found.append(problem.written.mistake("make_input", message))
    if len(still) < len(described):
        references = [problem.checked_reference(case, each) for each in sets]
        for name in _constant_in(references):
            why = "a kernel that reads none of them passes"
            message = f"{method} gives the same {name} for all inputs: {why}"
            found.append(problem.written.mistake(method, message))
    return tuple(map(str, found))


def _constant_in(sets: Sequence[Tensors]) -> list[str]:
    """The names of the tensors that are equal in all sets."""
    first, *others = sets
    return [
        name
        for name, value in first.items()
        if all(
            bool((comparable(value).double() == comparable(other[name]).double()).all())
            for other in others
        )
    ]


def _maker(problem: UserProblem, case: Case, name: str) -> str:
    described = problem.written.described("inputs", problem.sizes_of(case))
    return "make_indices" if described[name].has_indices else "make_input"
