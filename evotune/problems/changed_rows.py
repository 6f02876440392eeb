"""The tolerances of inputs that were changed in a few places, from those of the inputs before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import torch

from evotune.errors import ProblemMistake
from evotune.problems import _user_torch
from evotune.problems.problem import Case, Tensors
from evotune.problems.user import UserProblem

_MOST = 0.5
"""The largest share of rows that is worth a computation of its own."""
_ENOUGH = 8
"""Elements of a row whose tolerances depend on no other row: see `_monte_carlo`."""
_EQUAL = 1e-6
"""Results in float64 are equal if they differ by less than this share of the tolerance."""

_Values: TypeAlias = "Mapping[str, torch.Tensor]"


def tolerances_after(
    problem: UserProblem,
    case: Case,
    inputs: Tensors,
    reference: Tensors,
    before: tuple[_Values, _Values],
) -> Tensors:
    """The tolerances of `inputs`, which differ from others in a few places. `before`: the reference
    and the tolerances of those others.

    Rows whose reference is the same keep their tolerances. For the other rows `compute` is called
    on their rows of the inputs alone, if that gives the same reference. Estimates for all rows of
    all changed sets took most of a trial's preparation.
    """
    rows = _changed_rows(reference, before[0])
    if rows is not None and not len(rows):
        return dict(before[1])
    if rows is None:
        return problem.tolerances(case, inputs, reference)
    for own in _rows_of(inputs, rows, _count(reference)):
        of_rows = {name: value[rows] for name, value in reference.items()}
        found = _tolerances_of(problem, case, own, of_rows)
        if found is not None:
            return {name: old.index_copy(0, rows, found[name]) for name, old in before[1].items()}
    return problem.tolerances(case, inputs, reference)


def _changed_rows(reference: _Values, before: _Values) -> torch.Tensor | None:
    """The numbers of the rows in which a reference has changed; None where these are most rows, or
    rows have no tolerances of their own."""
    counts = {len(value) if value.dim() > 1 else 0 for value in reference.values()}
    if len(counts) > 1 or 0 in counts or min(v.shape[-1] for v in reference.values()) < _ENOUGH:
        return None
    differs = [(value != before[name]).flatten(1).any(1) for name, value in reference.items()]
    rows = torch.stack(differs).any(0).nonzero().flatten()
    return rows if len(rows) <= _MOST * counts.pop() else None


def _count(reference: _Values) -> int:
    return len(next(iter(reference.values())))


def _rows_of(inputs: Tensors, rows: torch.Tensor, count: int) -> Iterator[Tensors]:
    """The inputs with the rows alone, of each tensor that has as many rows as the outputs. Then
    without those of one dimension, which may have another size that is the same number."""
    for least in (1, 2):
        chosen = {n for n, v in inputs.items() if v.dim() >= least and len(v) == count}
        yield {n: v[rows] if n in chosen else v for n, v in inputs.items()}


def _tolerances_of(
    problem: UserProblem, case: Case, inputs: Tensors, reference: Tensors
) -> Tensors | None:
    """The tolerances of rows; None unless `compute` gives their reference from these inputs."""
    try:
        found = _user_torch.computed(problem, case, inputs, reference)
        tolerances = problem.tolerances(case, inputs, reference)
    except ProblemMistake:  # it is written for all rows
        return None
    for name, value in reference.items():
        if not bool(((found[name] - value).abs() <= _EQUAL * tolerances[name]).all()):
            return None
    return tolerances
