"""Whether a user's problem repeats its results, and whether its values vary at all."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from evotune.problems.problem import Case, Tensors
from evotune.problems.user import UserProblem

if TYPE_CHECKING:
    import torch

_SEEDS = (0, 1)
_CALLS = 4
_SAME = 1e-4
"""The share of a tolerance by which two results of one computation may differ. Sums in float64 that
several threads add up differ by a millionth of it, and random numbers by far more."""
_SAME_YARDSTICK = 0.25
"""The same for `yardstick_of`: twice its error is part of the tolerance."""
_SAME_INPUTS = 1e-6
"""The share of the largest value by which inputs of equal seeds may differ."""

_Call: TypeAlias = Callable[[Case, Tensors], Tensors]


def repeatability(problem: UserProblem, case: Case, device: str) -> tuple[str, ...]:
    """ProblemMistake where a method gives other results for equal arguments: then there is no right
    answer, and its tolerance would allow for the difference. Returns warnings of values that never
    vary, a line each."""
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
    """Whether two tensors are equal, but for the order of sums in floating-point ones."""
    if not one.is_floating_point():
        return bool((one == other).all())
    size, off = one.double().abs(), one.double() - other.double()
    return bool((off.abs() <= _SAME_INPUTS * size.amax()).logical_or_(off.isnan()).all())


def _check_results(problem: UserProblem, case: Case, inputs: Tensors, device: str) -> None:
    from evotune.problems import _user_torch

    calls: list[tuple[str, float, _Call]] = [("reference", _SAME, problem.checked_reference)]
    of_compute = functools.partial(UserProblem.reference, problem)
    if type(problem).reference is UserProblem.reference:
        calls = [("compute", _SAME, of_compute)]
    else:
        calls.append(("compute", _SAME, of_compute))  # the tolerances are its rounding errors
    # On a GPU a coarse sum may take another order each time.
    if device == "cpu" and type(problem).yardstick_of is not UserProblem.yardstick_of:
        yardstick = functools.partial(_user_torch.yardstick, problem)
        calls.append(("yardstick_of", _SAME_YARDSTICK, yardstick))
    reference = problem.checked_reference(case, inputs)
    tolerances = problem.tolerances(case, inputs, reference)
    for method, share, call in calls:
        first, *others = (call(case, inputs) for _ in range(_CALLS))
        for other, (name, value) in itertools.product(others, first.items()):
            off = (value.double() - other[name].double()).abs().nan_to_num_(0.0)
            if not bool((off <= share * tolerances[name]).all()):
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
        if described[name].values is None:
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
        if all(bool((value.double() == other[name].double()).all()) for other in others)
    ]


def _maker(problem: UserProblem, case: Case, name: str) -> str:
    described = problem.written.described("inputs", problem.sizes_of(case))
    return "make_indices" if described[name].has_indices else "make_input"
