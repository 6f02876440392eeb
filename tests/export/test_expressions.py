"""Expressions of a space, with configuration and device folded, mean the same in JSON."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evotune.errors import SpaceError
from evotune.export.case_shapes import to_json
from evotune.export.runtime._case_expressions import Names, NoValue
from evotune.export.runtime._case_expressions import evaluate as read_and_evaluate
from evotune.runs.setup import KernelSetup, load_setup
from evotune.runs.spaces import shipped_spaces
from evotune.space.bound import BoundSpace
from evotune.space.case_scope import evaluate
from evotune.space.language import Expression, parse_expression
from evotune.space.language.nodes import EvaluationError
from evotune.trial import Configuration, Value
from tests.space.spaces import bind_text

SPACE = """
let:
  twice: n + n
  depends: twice * A - m
  fixed: A * device.threads
  late: 7 // (m - 5)
parameters:
  A: [1, 2, 3]
  B: [false, true]
  KIND: {choices: [xor, pad]}
"""
CASES = ({"n": 64, "m": 5, "scale": 0.125, "wide": True, "dtype": "float16"},)
ATOMS = (
    *("0", "1", "3", "2.5", "true", "n", "m", "scale", "wide", "A", "B", "KIND", "pad"),
    *("device.threads", "twice", "depends", "fixed", "late", "dtype"),
)


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from([*"+-*/%<>", "//", "**", "<=", ">=", "==", "!=", "and", "or"])
    return st.one_of(
        st.builds("({} {} {})".format, parts, binary, parts),
        st.builds("({} if {} else {})".format, parts, parts, parts),
        st.builds("(not {})".format, parts),
        st.builds("(-{})".format, parts),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max", "ceil_div"]), parts, parts),
        st.builds("{}({})".format, st.sampled_from(["abs", "log2", "is_pow2"]), parts),
    )


EXPRESSIONS = st.recursive(st.sampled_from(ATOMS), joined, max_leaves=12)


@pytest.fixture(scope="module")
def space() -> BoundSpace:
    return bind_text(SPACE, CASES)


def both(
    space: BoundSpace,
    expression: Expression,
    configuration: Configuration,
    symbols: dict[str, Value],
) -> tuple[Value | None, Value | None, Value | None]:
    """The expression's value as the planner finds it, by the folded tree, and as a package finds it
    in its JSON. None where it has none."""
    wanted: Value | None
    try:
        wanted = space.evaluate(expression, configuration, symbols)
    except SpaceError:
        wanted = None
    scope = space.case_scope(configuration, {"dtype": symbols["dtype"]})
    node = scope.bind(expression)
    own = {name: value for name, value in symbols.items() if name != "dtype"}
    folded: Value | None
    try:
        folded = evaluate(node, scope.environment(own))
    except EvaluationError:
        folded = None
    told = json.loads(json.dumps([to_json(node), {n: to_json(x) for n, x in scope.lets.items()}]))
    try:
        read = read_and_evaluate(told[0], Names(own, told[1]))
    except NoValue:
        read = None
    return wanted, folded, read


SYMBOLS = st.fixed_dictionaries(
    {
        "n": st.integers(1, 80),
        "m": st.integers(1, 9),
        "scale": st.sampled_from([0.125, 3.0]),
        "wide": st.booleans(),
        "dtype": st.just("float16"),
    }
)
CONFIGURATIONS = st.fixed_dictionaries(
    {"A": st.sampled_from([1, 2, 3]), "B": st.booleans(), "KIND": st.sampled_from(["xor", "pad"])}
)


@given(EXPRESSIONS, SYMBOLS, CONFIGURATIONS)
def test_a_folded_expression_has_the_same_value_in_every_case(
    space: BoundSpace, text: str, symbols: dict[str, Value], values: dict[str, Value]
) -> None:
    configuration = Configuration(values)
    try:
        expression = parse_expression(text)
        space.check(expression)
    except SpaceError:
        return  # refused before a search
    wanted, folded, read = both(space, expression, configuration, symbols)
    assert (wanted, type(wanted)) == (folded, type(folded)) == (read, type(read))


def test_configuration_device_and_known_symbols_are_folded(space: BoundSpace) -> None:
    configuration = Configuration({"A": 2, "B": True, "KIND": "pad"})
    scope = space.case_scope(configuration, {"dtype": "float16"})

    def folded(text: str) -> object:
        return to_json(scope.bind(parse_expression(text)))

    assert folded("fixed + A") == 2050
    assert folded("n * A if KIND == pad and dtype == 'float16' else m // 0") == [
        "*",
        {"name": "n"},
        2,
    ]
    assert folded("depends") == {"name": "depends"}
    lets = {name: to_json(node) for name, node in scope.lets.items()}
    assert lets == {
        "twice": ["+", {"name": "n"}, {"name": "n"}],
        "depends": ["-", ["*", {"name": "twice"}, 2], {"name": "m"}],
    }
    assert list(scope.needed([scope.bind(parse_expression("depends"))])) == ["twice", "depends"]


@pytest.mark.sweep(8)
@pytest.mark.parametrize(("name", "path"), shipped_spaces().items(), ids=list(shipped_spaces()))
def test_every_expression_of_a_shipped_space_is_folded_rightly(name: str, path: Path) -> None:
    device = "l4" if name in ("attention-l4", "linear-mma") else "h200"
    setup = load_setup(path, "cpu" if "-cpu" in name else device, compile_only=True)
    assert isinstance(setup, KernelSetup)
    document, rng = setup.document, random.Random(0)
    expressions = [spec.expression for spec in document.constraints]
    for kernel in document.kernels:
        expressions += kernel.expressions()
        expressions += [launch.when for launch in kernel.launches if launch.when is not None]
        expressions += [
            parse_expression(argument.name)
            for argument in kernel.arguments
            if argument.name in {*document.let, *setup.cases["timed"][0].symbols}
        ]
    timed = setup.cases["timed"]
    cases = [*timed, *setup.planner.problem.edge_cases(timed[0])]
    compared = 0
    for _ in range(3):
        configuration = setup.space.sample(rng)
        for case in cases:
            for expression in expressions:
                found = both(setup.space, expression, configuration, dict(case.symbols))
                assert found[0] == found[1] == found[2], expression.text
                compared += 1
    assert compared >= 3 * len(cases)
