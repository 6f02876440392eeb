"""Infers the types that an expression can have: a wrong one is an error before the search."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from evotune.space.language.nodes import EQUALITY, ORDERING, Literal, Name, Node, Operation
from evotune.space.reading.yaml_source import Position
from evotune.space.suggest import did_you_mean
from evotune.trial import Value

Kinds: TypeAlias = frozenset[type]
BOOL: Kinds = frozenset((bool,))
INT: Kinds = frozenset((int,))
FLOAT: Kinds = frozenset((float,))
TEXT: Kinds = frozenset((str,))


def kinds_of(values: Iterable[Value]) -> Kinds:
    return frozenset(type(value) for value in values)


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
