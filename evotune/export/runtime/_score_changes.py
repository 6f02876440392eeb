"""The value of a score modification on tensors, from its tree in `dispatch.json`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch


def changed_scores(
    tree: Any, score: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor
) -> torch.Tensor:
    """The scores that the tree makes of `score`; the other tensors number heads, rows and columns,
    and are integers that broadcast with it."""
    value = _value(tree, {"score": score, "head": head, "row": row, "column": column})
    if not isinstance(value, torch.Tensor):
        return torch.full_like(score, value)
    return value.to(score.dtype).expand(score.shape)


def _value(tree: Any, names: Mapping[str, torch.Tensor]) -> Any:
    """A tensor, or a number where the tree has no names."""
    if isinstance(tree, dict):
        return names[tree["name"]]
    if not isinstance(tree, list):
        return tree
    name, *operands = tree
    values = [_value(each, names) for each in operands]
    if name in ("min", "max", "if"):
        of = names["score"]
        tensors = [
            each if isinstance(each, torch.Tensor) else torch.full((), each, device=of.device)
            for each in values
        ]
        if name == "if":
            return torch.where(*tensors)
        return functools.reduce(torch.minimum if name == "min" else torch.maximum, tensors)
    return functools.reduce(_OPERATORS[name], values) if len(values) > 1 else _ONE[name](*values)


_ONE: Mapping[str, Callable[[Any], Any]] = {
    "neg": operator.neg,
    "abs": abs,
    "not": lambda a: not a if isinstance(a, bool) else torch.logical_not(a),
}
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
}
