"""The runtime's interpreter gives the values that the search gives, or none where it has none."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evotune.export.runtime._case_expressions import Names, NoValue, evaluate
from evotune.space.document import load_space
from evotune.space.language import Expression, parse_expression
from evotune.space.language.nodes import (
    EvaluationError,
    Literal,
    Name,
    Node,
    Operation,
    compile_scalar,
    names_in,
)
from evotune.trial import Value

_FOLDER = Path(__file__).parents[3] / "search_spaces"
WITHOUT = {"rms_norm_cpu", "softmax_cpu"}
"""They have no expressions."""
SPACES = sorted(path for path in _FOLDER.glob("*.yaml") if path.stem not in WITHOUT)
VALUES: list[Value] = [0, 1, -3, 7, 2**40, 2**62, 2.5, -0.5, 1e300, True, False, "xor"]
NAMES: dict[str, Value] = {"A": 12, "B": -5, "Z": 0, "F": 2.5, "YES": True, "KIND": "xor"}
OPERATORS = {
    1: ["neg", "not", "abs", "log2", "is_pow2"],
    2: [
        *("+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">="),
        *("and", "or", "min", "max", "ceil_div"),
    ],
    3: ["if", "and", "or", "min", "max"],
}


def as_json(node: Node) -> Any:
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Name):
        return {"name": node.name}
    return [node.operator, *map(as_json, node.operands)]


def value_of(expression: Any, names: Mapping[str, Value]) -> Any:
    """The value and its type; the error's class where there is none."""
    try:
        value = evaluate(expression, Names(names, {}))
    except NoValue:
        return NoValue
    return repr(value), type(value)


def searched_value_of(node: Node, names: Mapping[str, Value]) -> Any:
    try:
        value = compile_scalar(node)(dict(names))
    except EvaluationError:
        return NoValue
    return repr(value), type(value)


leaves = st.sampled_from(VALUES).map(Literal) | st.sampled_from(sorted(NAMES)).map(Name)
trees = st.recursive(
    leaves,
    lambda parts: st.sampled_from([1, 2, 2, 3]).flatmap(
        lambda count: st.builds(
            lambda operator, operands: Operation(operator, tuple(operands)),
            st.sampled_from(OPERATORS[count]),
            st.lists(parts, min_size=count, max_size=count),
        )
    ),
    max_leaves=12,
)


@given(trees)
def test_random_expressions_have_the_values_that_the_search_gives_them(node: Node) -> None:
    assert value_of(as_json(node), NAMES) == searched_value_of(node, NAMES)


def expressions(part: object) -> Iterator[Expression]:
    """Every expression of a space, wherever it stands."""
    if isinstance(part, Expression):
        yield part
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from expressions(value)
    elif isinstance(part, tuple | list):
        for value in part:
            yield from expressions(value)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from expressions(getattr(part, field.name))


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_the_shipped_spaces_expressions_have_the_same_values(path: Path) -> None:
    document = load_space(path)
    rng = random.Random(0)
    choices = [0, 1, 2, 8, 64, 512, 0.125, True, False, "xor", "rows"]
    found = list(expressions(document))
    assert found
    for expression in found:
        for _ in range(20):
            names = {name.name: rng.choice(choices) for name in names_in(expression.node)}
            assert value_of(as_json(expression.node), names) == searched_value_of(
                expression.node, names
            )


def test_a_let_is_evaluated_once_and_only_when_it_is_needed() -> None:
    names = Names({"a": 6}, {"b": ["*", {"name": "a"}, 7], "c": ["//", 1, 0]})
    assert evaluate(["if", True, {"name": "b"}, {"name": "c"}], names) == 42
    assert names["b"] == 42
    assert "c" not in names
    with pytest.raises(NoValue, match="division by zero"):
        evaluate({"name": "c"}, names)
    with pytest.raises(NoValue, match="nothing has the name d"):
        evaluate({"name": "d"}, names)


def test_an_expression_of_a_file_reads_as_its_tree() -> None:
    node = parse_expression("ceil_div(A, 5) if YES else A // Z").node
    assert as_json(node)[0] == "if"
    assert value_of(as_json(node), NAMES) == ("3", int)
