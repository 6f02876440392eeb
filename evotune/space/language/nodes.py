"""The tree of an expression, which scalar, vectorised and interval evaluation share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from evotune.trial import Value

LIMIT = 2**63  # every number x of the language satisfies |x| < LIMIT
EXACT_FLOAT = 2**53  # below it, float64 holds every integer
MAX_EXPONENT = 64

ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "%", "**"})
ORDERING = frozenset({"<", "<=", ">", ">="})
EQUALITY = frozenset({"==", "!="})
FUNCTIONS: dict[str, tuple[int, int]] = {  # name: fewest and most arguments
    "min": (1, 64),
    "max": (1, 64),
    "ceil_div": (2, 2),
    "abs": (1, 1),
    "log2": (1, 1),
    "is_pow2": (1, 1),
}


class EvaluationError(Exception):
    """An expression has no value here: a division by zero, an overflow, text as a number."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    value: Value


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A parameter, let, problem symbol, `device.x`, or the bare name of a choice."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """`operator` is a Python operator, `neg`, `if` (condition, then, else) or a function.

    `and`, `or`, `if` evaluate only the operands they need.
    """

    operator: str
    operands: tuple[Node, ...]
    offset: int = 0


Node: TypeAlias = Literal | Name | Operation


def operands_of(node: Node) -> tuple[Node, ...]:
    return node.operands if isinstance(node, Operation) else ()


def post_order(
    root: Node,
    done: Container[Node],
    needs: Callable[[Node], Iterable[Node]] = operands_of,
) -> Iterator[Node]:
    """Every node that is not in `done`, after the nodes that it `needs`. The caller must enter each
    node in `done` before it asks for the next. There is no recursion, since `let` makes trees of
    thousands of levels."""
    waiting = [root]
    while waiting:
        node = waiting[-1]
        missing = [] if node in done else [other for other in needs(node) if other not in done]
        if missing:
            waiting.extend(reversed(missing))
            continue
        waiting.pop()
        if node not in done:
            yield node


def used_often(roots: Iterable[Node], least_depth: int) -> frozenset[Node]:
    """Operations that are used more than once and have at least `least_depth` levels."""
    users: Counter[Node] = Counter()
    depths: dict[Node, int] = {}
    for root in dict.fromkeys(roots):
        for node in post_order(root, depths):
            operands = operands_of(node)
            depths[node] = 1 + max((depths[operand] for operand in operands), default=0)
            users.update(operands)
    return frozenset(
        node
        for node, count in users.items()
        if count > 1 and isinstance(node, Operation) and depths[node] >= least_depth
    )


def names_in(node: Node) -> list[Name]:
    """Every name in the tree, from left to right."""
    if isinstance(node, Name):
        return [node]
    if isinstance(node, Literal):
        return []
    return [name for operand in node.operands for name in names_in(operand)]
