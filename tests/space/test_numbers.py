"""Numbers that are too large and operations without a result: a clear message everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from evotune.errors import SpaceError
from evotune.space.language import Expression, parse_expression
from evotune.space.language.columns import bounds_of_column, bounds_of_values, can_hold, column_of
from evotune.space.language.nodes import Literal, Operation
from evotune.trial import Value

from .spaces import bind_text, parse_text

WITHOUT_VALUE = [
    ("2 ** 64 > 1", 0, "the result is 2**63 or more in `2 ** 64 > 1`"),
    ("A == 1 or 2 ** 64 > 1", 10, "the result is 2**63 or more"),
    ("A + 10 ** 18 * 10 > 1", 4, "the result is 2**63 or more"),
    ("1.5 ** 64 * 1.5 ** 64 > A", 0, "the result is 2**63 or more"),
    ("A < 2 ** -1", 4, "an exponent is an integer from 0 to 64"),
    ("A < 2 ** 65", 4, "an exponent is an integer from 0 to 64"),
    ("A < 7 // (3 - 3)", 4, "division by zero"),
    ("A < 7 % 0", 4, "division by zero"),
    ("A < 7 / 0.0", 4, "division by zero"),
    ("A < ceil_div(1, 0)", 4, "division by zero"),
    ("A > log2(0)", 4, "log2 takes a positive number"),
    ("is_pow2(0.5) or A == 1", 0, "is_pow2 takes an integer"),
]
PLACES = [
    ('parameters: {A: [1, 2]}\nconstraints: ["@"]\n', 5, 16),
    ('parameters: {A: [1, 2], B: {values: [1, 2], when: "@"}}\n', 4, 52),
    ('let: {big: "@"}\nparameters: {A: [1, 2]}\n', 4, 13),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("text", "offset", "words"), WITHOUT_VALUE)
def test_numbers_that_give_no_number_are_refused_where_they_stand(
    text: str, offset: int, words: str, place: tuple[str, int, int]
) -> None:
    body, line, column = place
    with pytest.raises(SpaceError) as caught:
        parse_text(body.replace("@", text))
    assert (caught.value.line, caught.value.column) == (line, column + offset)
    assert words in caught.value.message


BOUND = [
    "n ** 40 > A",
    "A + wide > 1",
    "n // (n - 64) > A",
    "wide > 1 or A > 1",
    "not (A < 5 and wide > 1) if wide > 1 else A > 0",
    "min(A, device.threads ** 8) > 0",
]


@pytest.mark.parametrize("text", BOUND)
def test_what_has_no_value_for_a_shape_or_a_device_is_refused_when_it_is_bound(text: str) -> None:
    body = 'let: {wide: "n * 2 ** 60"}\nparameters: {A: [1, 2]}\n'
    with pytest.raises(SpaceError, match=r":6:16: (the result is 2\*\*63|division by zero).* in `"):
        bind_text(f'{body}constraints: ["{text}"]\n')


def test_what_no_configuration_looks_at_may_have_no_value() -> None:
    body = 'let: {part: "64 // n"}\nparameters: {A: [1, 2]}\n'
    for text in (
        "n == 0 or part > A",
        "A > 0 if n == 0 else part > A",
        "not (n != 0 and part < A)",
    ):
        space = bind_text(f'{body}constraints: ["{text}"]\n', [{"n": 0}])
        assert space.size().valid == 2


def test_a_constraint_says_how_often_it_has_no_value() -> None:
    space = bind_text(
        "parameters: {A: [0, 1, 2, 3], B: {range: [1, 10]}}\n"
        'constraints: ["A ** 40 >= 0", "B // A >= 0", "A * B < 100", "A == 0 or B % A >= 0"]\n'
    )
    power, quotient, product, guarded = space.constraint_report()
    assert (power.without_value, power.removes_alone) == (10, 10)  # 3 ** 40 is 2**63 or more
    assert (quotient.without_value, quotient.removes_alone) == (10, 10)
    assert (product.without_value, guarded.without_value) == (0, 0)
    assert space.violations({"A": 3, "B": 1}) == [
        "A ** 40 >= 0: no value, the result is 2**63 or more"
    ]


def test_a_space_without_a_configuration_says_that_a_constraint_has_no_value() -> None:
    body = "parameters: {A: [2, 3], B: [1, 2]}\n"
    with pytest.raises(SpaceError, match=r"no configuration satisfies .*: it has no value, the"):
        bind_text(f'{body}constraints: ["A ** 64 > B"]\n').size()
    when = 'parameters: {A: [2, 3], B: {values: [1, 2], when: "A ** 64 > 1"}}\n'
    with pytest.raises(SpaceError, match=r"gives 'when' a value: .*; the result is 2\*\*63 or mor"):
        bind_text(when).size()


EDGES = [2**31, 2**32, 2**53, 2**62, 2**63 - 1]
INTEGERS = st.builds(
    lambda edge, step, sign: sign * min(max(edge + step, 0), 2**63 - 1),
    st.sampled_from([0, 1, 3, *EDGES]),
    st.integers(-3, 3),
    st.sampled_from([-1, 1]),
)
FLOATS = st.sampled_from([0.0, -0.0, 0.5, -1.5, 5e-324, 1e-300, 2.0**53, 2.0**62, 9.2e18, -9.2e18])
COLUMNS = {"I": INTEGERS, "J": INTEGERS, "F": FLOATS, "G": FLOATS, "T": st.booleans()}
LEAVES = st.sampled_from([*COLUMNS, "0", "1", "2", "63", "64", "0.5", "9223372036854775807"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "==", "<", ">="])
    calls = st.sampled_from(["min", "max", "ceil_div"])
    return st.one_of(
        st.builds("({} {} {})".format, inner, binary, inner),
        st.builds("{}({}, {})".format, calls, inner, inner),
        st.builds("{}({})".format, st.sampled_from(["-", "abs", "log2"]), inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
    )


@settings(
    derandomize=True, deadline=None, max_examples=500, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    st.recursive(LEAVES, _larger, max_leaves=6),
    st.lists(st.fixed_dictionaries(COLUMNS), min_size=1, max_size=6),
)
def test_rows_columns_and_bounds_agree_where_numbers_end(
    text: str, rows: list[dict[str, Value]]
) -> None:
    try:
        expression = parse_expression(text)
    except SpaceError:
        assume(False)
    values, failed = expression.evaluate_columns(
        {name: np.array([row[name] for row in rows]) for name in COLUMNS}
    )
    whole = {name: bounds_of_values([row[name] for row in rows]) for name in COLUMNS}
    known = {name: bounds_of_column(column_of([row[name] for row in rows])) for name in COLUMNS}
    for i, row in enumerate(rows):
        expected = _value_or_none(expression, row)
        assert failed[i] == (expected is None)
        if expected is None:
            continue
        assert (values.tolist()[i], type(values.tolist()[i])) == (expected, type(expected))
        found = Operation("==", (expression.node, Literal(expected)))
        assert can_hold(found, whole).all()
        assert np.broadcast_to(can_hold(found, known), len(rows))[i]


def _value_or_none(expression: Expression, row: dict[str, Value]) -> Value | None:
    try:
        return expression.evaluate(row)
    except SpaceError:
        return None


@pytest.mark.parametrize(
    ("text", "without_value"),
    [("C < 3", 2), ("D and C", 1), ("not C", 2), ("(1 if C else 2) == 1", 2), ("C != 2", 0)],
)
def test_a_constraint_says_how_often_it_meets_a_word(text: str, without_value: int) -> None:
    space = bind_text(
        "parameters: {C: {choices: [1, fast, 2]}, D: [false, true]}\n"
        f'constraints: ["C == 1 or D or not D", "{text}"]\n'
    )
    assert space.constraint_report()[1].without_value == without_value
