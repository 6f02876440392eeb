"""The tree of an expression, which scalar, vectorised and interval evaluation share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from evotune.space.reading.yaml_source import Position
from evotune.trial import Value
from evotune.util.words import did_you_mean

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


# --- Infers the types that an expression can have: a wrong one is an error before the search ------

Kinds: TypeAlias = frozenset[type]
BOOL: Kinds = frozenset((bool,))
INT: Kinds = frozenset((int,))
FLOAT: Kinds = frozenset((float,))
TEXT: Kinds = frozenset((str,))


def kinds_of(values: Iterable[Value]) -> Kinds:
    return frozenset(type(value) for value in values)


def is_condition(node: Node) -> bool:
    """Whether the value is true or false, whatever its names stand for."""
    if not isinstance(node, Operation):
        return False
    return node.operator in ("and", "or", "not") or node.operator in EQUALITY | ORDERING


class KindChecker:
    """Infers types; refuses arithmetic on text and comparisons that can never hold.

    `name_kinds` gives a name's types, `choices` the values a name of text can have.
    """

    def __init__(
        self,
        position: Position,
        name_kinds: Callable[[Name], Kinds],
        choices: Callable[[Name], tuple[Value, ...] | None],
    ) -> None:
        self.position = position
        self.name_kinds = name_kinds
        self.choices = choices

    def infer(self, node: Node) -> Kinds:
        if isinstance(node, Literal):
            return frozenset((type(node.value),))
        if isinstance(node, Name):
            return self.name_kinds(node)
        operands = [self.infer(operand) for operand in node.operands]
        operator = node.operator
        if operator == "if":
            self._require_number(node, 0, operands[0])
            return operands[1] | operands[2]
        if operator in EQUALITY:
            self._require_possible(node)
            return BOOL
        for i, kinds in enumerate(operands):
            self._require_number(node, i, kinds)
        if operator in ("and", "or", "not", "is_pow2") or operator in ORDERING:
            return BOOL
        return self._number(operator, operands)

    def _number(self, operator: str, operands: list[Kinds]) -> Kinds:
        if operator == "/":
            return FLOAT
        if operator == "log2":
            return INT
        floating = any(float in kinds for kinds in operands)
        if not floating:
            return INT
        return FLOAT if all(kinds == FLOAT for kinds in operands) else FLOAT | INT

    def _require_number(self, node: Operation, index: int, kinds: Kinds) -> None:
        if kinds != TEXT:
            return
        operand = node.operands[index]
        what = f"'{operand.name}'" if isinstance(operand, Name) else "this"
        word = "a condition" if node.operator in ("and", "or", "not", "if") else "a number"
        offset = node.offset if isinstance(operand, Literal) else operand.offset
        raise self.position.error(f"expected {word}, but {what} is an identifier", offset)

    def _require_possible(self, node: Operation) -> None:
        """SpaceError for a comparison with a word that a name never has. `SWIZZLE == xro`, where
        xro is no value of SWIZZLE, is a misspelling."""
        for subject, other in (node.operands, node.operands[::-1]):
            if not isinstance(subject, Name) or not isinstance(other, Literal):
                continue
            values = self.choices(subject)
            if values is not None and other.value not in values:
                hint = did_you_mean(str(other.value), [str(value) for value in values])
                message = f"{subject.name} is never {other.value}{hint}"
                raise self.position.error(message, subject.offset)
