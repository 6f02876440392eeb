"""The value of a score modification's tree on tensors, in PyTorch's own arithmetic.

No operation here makes a tensor from the CPU's data, so calls that use it can be captured into a
CUDA graph and compiled. `_attention_scores.py` has the value with its error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from evotune.space.language.nodes import Literal, Name, Node


def modified_scores(node: Node, names: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The value of the tree for tensors `names`, of which "score" has the whole shape."""
    score = names["score"]
    value = value_of(node, names)
    if not isinstance(value, torch.Tensor):
        return torch.full_like(score, value)
    return value.to(score.dtype).expand(score.shape)


def value_of(node: Node, names: Mapping[str, torch.Tensor]) -> Any:
    """A tensor, or a number where the tree has no names."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Name):
        return names[node.name]
    parts = [value_of(each, names) for each in node.operands]
    operator = node.operator
    if operator in ("min", "max", "if"):
        parts = [_tensor(each, names["score"]) for each in parts]
        if operator == "if":
            return torch.where(*parts)
        smaller = torch.minimum if operator == "min" else torch.maximum
        return functools.reduce(smaller, [each.to(torch.float32) for each in parts])
    return _OPERATIONS[operator](*parts)


def _tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.full_like(like, value, dtype=torch.bool if isinstance(value, bool) else None)


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "neg": lambda a: -a,
    "abs": abs,
    "not": lambda a: (not a) if isinstance(a, bool) else ~a,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "and": lambda *parts: functools.reduce(lambda a, b: a & b, parts),
    "or": lambda *parts: functools.reduce(lambda a, b: a | b, parts),
}
