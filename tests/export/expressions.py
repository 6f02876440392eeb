"""Reads the expressions of an exported package in the tests, without the package's own code."""

from __future__ import annotations

from collections.abc import Mapping

from evotune.space.language.nodes import EvaluationError, Literal, Name, Node, Operation
from evotune.space.language.scalar import Environment, compile_scalar
from evotune.trial import Json, Value


def tree(found: Json) -> Node:
    if isinstance(found, dict):
        assert set(found) == {"name"}
        return Name(found["name"])
    if isinstance(found, list):
        return Operation(found[0], tuple(map(tree, found[1:])))
    assert isinstance(found, bool | int | float | str)
    return Literal(found)


class Lazy(dict[str, Value]):
    """Symbols, and `let`s that are evaluated when they are named."""

    def __init__(self, symbols: Mapping[str, Value], lets: Mapping[str, Json]) -> None:
        super().__init__(symbols)
        self.lets = lets

    def __missing__(self, name: str) -> Value:
        self[name] = compile_scalar(tree(self.lets[name]))(self)
        return self[name]


def value_of(found: Json, symbols: Mapping[str, Value], lets: Mapping[str, Json]) -> Value | None:
    """The expression's value; None when it has none."""
    environment: Environment = Lazy(symbols, lets)
    try:
        return compile_scalar(tree(found))(environment)
    except EvaluationError:
        return None
