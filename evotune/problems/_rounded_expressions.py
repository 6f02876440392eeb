"""Evaluates an expression on tensors, with the error that float32 may make: running error analysis.

Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.3: each operation passes its
operands' errors on, to first order, and adds a unit of its result; divisions add a few. Where a
comparison may come out either way, the errors reach from one branch to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from evotune.space.language.nodes import Literal, Name, Node

_UNIT = 2.0**-24
_FEW = 3.0
Rounded: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Values, and the most that each may be off. Of a truth value the latter is 1 where it may be
wrong."""

_COMPARE: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
}


def evaluated(node: Node, names: Mapping[str, Rounded]) -> Rounded:
    """The value of the tree, which broadcasts over the tensors of `names`."""
    if isinstance(node, Literal):
        like = next(iter(names.values()))[1]
        value = torch.full((), float(node.value), dtype=like.dtype, device=like.device)
        if isinstance(node.value, bool):
            return value != 0, torch.zeros_like(value)
        exact = float(node.value).is_integer() and abs(float(node.value)) < 1 << 24
        return value, torch.zeros_like(value) if exact else _UNIT * value.abs()
    if isinstance(node, Name):
        return names[node.name]
    return _operation(node.operator, [evaluated(each, names) for each in node.operands])


def _operation(operator: str, parts: list[Rounded]) -> Rounded:  # noqa: PLR0911
    (a, off_a), (b, off_b) = parts[0], parts[1] if len(parts) > 1 else parts[0]
    if operator in ("neg", "abs"):
        return (-a if operator == "neg" else a.abs()), off_a
    if operator == "not":
        return ~a, off_a
    if operator in _COMPARE:
        close = (a - b).abs() <= off_a + off_b
        return _COMPARE[operator](a, b), (close & (off_a + off_b > 0)).to(off_a.dtype)
    if operator in ("and", "or"):
        truth, doubt = parts[0]
        for other, more in parts[1:]:
            truth = truth & other if operator == "and" else truth | other
            doubt = torch.maximum(doubt, more)
        return truth, doubt
    if operator in ("min", "max"):
        choose = torch.minimum if operator == "min" else torch.maximum
        for other, more in parts[1:]:
            a, off_a = choose(a, other), torch.maximum(off_a, more)
        return a, off_a
    if operator == "if":
        return _chosen(parts)
    return _arithmetic(operator, parts)


def _chosen(parts: list[Rounded]) -> Rounded:
    (truth, doubt), (a, off_a), (b, off_b) = parts
    value, off = torch.where(truth, a, b), torch.where(truth, off_a, off_b)
    if a.dtype == torch.bool:
        return value, torch.maximum(off, doubt)
    return value, off + doubt * ((a - b).abs() + off_a + off_b)


def _arithmetic(operator: str, parts: list[Rounded]) -> Rounded:
    (a, off_a), (b, off_b) = parts
    if operator in ("//", "%"):  # of integers, exact until they become floats
        value = torch.floor(a / b) if operator == "//" else a - b * torch.floor(a / b)
        return value, _UNIT * torch.where(value.abs() < 1 << 24, 0.0, value.abs())
    units = 1.0
    if operator in ("+", "-"):
        value, off = (a + b if operator == "+" else a - b), off_a + off_b
    elif operator == "*":
        value, off = a * b, a.abs() * off_b + b.abs() * off_a
    else:
        value, units = a / b, _FEW
        off = (off_a + value.abs() * off_b) / b.abs()
    return value, off + units * _UNIT * value.abs()
