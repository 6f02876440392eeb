"""Tolerances of some rows at a time: of those that changed, or of a long tensor's one block after
the other, which fits into a core's cache.

Used only if the reference of these rows alone is the same as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import torch

from evotune.errors import ProblemMistake
from evotune.problems import user_torch
from evotune.problems.problem import Case, Tensors, comparable
from evotune.problems.user import UserProblem

_MOST = 0.5
"""The largest share of rows for which a separate computation pays."""
_ENOUGH = 8
"""Elements of a row whose tolerances depend on no other row: see `rounding_errors.py`."""
_EQUAL = 1e-6
"""Results in float64 are equal if they differ by less than this share of the tolerance."""

_LARGE, _BLOCK = 1 << 18, 1 << 17
"""Elements: an estimate makes some fifty tensors of the outputs' size, in float64."""

_Values: TypeAlias = "Mapping[str, torch.Tensor]"


def tolerances_after(
    problem: UserProblem,
    case: Case,
    inputs: Tensors,
    reference: Tensors,
    before: tuple[_Values, _Values],
) -> Tensors:
    """The tolerances of `inputs`, which differ from earlier inputs in a few elements. `before`: the
    reference and the tolerances of the earlier inputs.

    Rows whose reference is the same keep their tolerances. For the other rows `compute` is called
    on their rows of the inputs alone, if that gives the same reference. Estimates for all rows of
    all changed sets took most of a trial's preparation.
    """
    rows = _changed_rows(reference, before[0])
    if rows is not None and not len(rows):
        return dict(before[1])
    if rows is None:
        return tolerances_by_blocks(problem, case, inputs, reference)
    for own in _rows_of(inputs, rows, _count(reference)):
        of_rows = {name: value[rows] for name, value in reference.items()}
        found = _tolerances_of(problem, case, own, of_rows)
        if found is not None:
            return {name: old.index_copy(0, rows, found[name]) for name, old in before[1].items()}
    return tolerances_by_blocks(problem, case, inputs, reference)


def tolerances_by_blocks(
    problem: UserProblem, case: Case, inputs: Tensors, reference: Tensors
) -> Tensors:
    """The tolerances of large outputs in the host's memory, by blocks of rows. In blocks of 2^17
    elements an estimate takes a third of the processor's time.

    For other outputs, and for problems whose rows depend on each other, all tolerances are computed
    at once.
    """
    elements = max(value.numel() for value in reference.values())
    on_host = all(value.device.type == "cpu" for value in reference.values())
    if not on_host or elements <= _LARGE or not _have_rows(reference):
        return problem.tolerances(case, inputs, reference)
    count = _count(reference)
    step = max(1, count * _BLOCK // elements)
    found: list[Tensors] = []
    for first in range(0, count, step):
        rows = slice(first, first + step)
        of_rows = {name: value[rows] for name, value in reference.items()}
        for own in _rows_of(inputs, rows, count):
            of_block = _tolerances_of(problem, case, own, of_rows)
            if of_block is not None:
                break
        else:
            return problem.tolerances(case, inputs, reference)
        found.append(of_block)
    return {name: torch.cat([each[name] for each in found]) for name in reference}


def _have_rows(reference: _Values) -> bool:
    """Whether all outputs have the same number of rows and tolerances can be computed row by
    row."""
    if any(value.dim() < 2 or value.shape[-1] < _ENOUGH for value in reference.values()):
        return False
    return len({len(value) for value in reference.values()}) == 1


def _changed_rows(reference: _Values, before: _Values) -> torch.Tensor | None:
    """The numbers of the rows in which a reference has changed; None if these are most rows, or if
    tolerances cannot be computed row by row."""
    if not _have_rows(reference):
        return None
    differs = [(value != before[name]).flatten(1).any(1) for name, value in reference.items()]
    rows = torch.stack(differs).any(0).nonzero().flatten()
    return rows if len(rows) <= _MOST * _count(reference) else None


def _count(reference: _Values) -> int:
    return len(next(iter(reference.values())))


def _rows_of(inputs: Tensors, rows: torch.Tensor | slice, count: int) -> Iterator[Tensors]:
    """The inputs, with only these rows of each tensor that has as many rows as the outputs. A
    second version leaves one-dimensional tensors whole, because they may have another size that is
    the same number."""
    for least in (1, 2):
        chosen = {n for n, v in inputs.items() if v.dim() >= least and len(v) == count}
        yield {n: v[rows] if n in chosen else v for n, v in inputs.items()}


def _tolerances_of(
    problem: UserProblem, case: Case, inputs: Tensors, reference: Tensors
) -> Tensors | None:
    """The tolerances of rows; None unless `compute` gives their reference from these inputs."""
    try:
        found = user_torch.computed(problem, case, inputs, reference)
        tolerances = problem.tolerances(case, inputs, reference)
    except ProblemMistake:  # it is written for all rows
        return None
    for name, value in reference.items():
        off = comparable(found[name].to(value.dtype) - value).abs()
        if not bool((off <= _EQUAL * comparable(tolerances[name])).all()):
            return None
    return tolerances
