"""Expressions of a space file: constraints, `when`, `let`, launch sizes.

A small closed language of integers, floats, booleans and identifiers. Every number x
satisfies |x| < 2**63. A larger result and a division by zero have no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from evotune.space.language.columns import Array, Column, column_of, evaluate_columns
from evotune.space.language.nodes import EvaluationError, Name, Node, names_in
from evotune.space.language.parsing import parse_node
from evotune.space.language.scalar import Evaluate, compile_scalar
from evotune.space.reading.yaml_source import Position
from evotune.space.suggest import did_you_mean
from evotune.trial import Value


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression, its text and its position. Expressions are equal if their texts are."""

    text: str
    position: Position = field(compare=False)
    node: Node = field(compare=False, repr=False)
    closure: Evaluate = field(compare=False, repr=False)

    @property
    def names(self) -> tuple[Name, ...]:
        """Every use of a name, from left to right."""
        return tuple(names_in(self.node))

    def error(self, message: str, offset: int = 0) -> Exception:
        return self.position.error(message, offset)

    def evaluate(self, scope: Mapping[str, Value]) -> Value:
        """The expression's value, with names as in `scope`. SpaceError if it has none."""
        self._require_names(scope)
        try:
            return self.closure(dict(scope))
        except EvaluationError as error:
            raise self.position.error(f"{error} in `{self.text}`") from error

    def evaluate_columns(self, scope: Mapping[str, Array]) -> tuple[Array, Array]:
        """Values of many rows at once, and which rows have none. All arrays have one length."""
        self._require_names(scope)
        rows = max((len(array) for array in scope.values()), default=1)
        known: dict[str, Column] = {}
        for name, array in scope.items():
            known[name] = column_of(array.tolist()) if array.dtype.kind == "O" else Column(array)
        column = evaluate_columns(self.node, known, rows)
        failed = np.zeros(rows, dtype=bool) if column.failed is None else column.failed
        return column.values, failed

    def _require_names(self, scope: Mapping[str, object]) -> None:
        for name in self.names:
            if name.name not in scope:
                hint = did_you_mean(name.name, scope)
                raise self.position.error(f"unknown name '{name.name}'{hint}", name.offset)


def parse_expression(text: Value, position: Position | None = None) -> Expression:
    """The expression in `text`, which YAML may already have read as a number or boolean."""
    position = position or Position()
    words = str(text).lower() if isinstance(text, bool) else str(text)
    node = parse_node(words, position)
    return Expression(" ".join(words.split()), position, node, compile_scalar(node))
