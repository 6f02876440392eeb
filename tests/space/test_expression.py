from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.errors import SpaceError
from evotune.space.language import Expression, parse_expression
from evotune.space.language.columns import (
    bounds_of_column,
    bounds_of_values,
    can_hold,
    codes,
    column_of,
)
from evotune.trial import Value

SCOPE: dict[str, Value] = {"A": 12, "B": 5, "Z": 0, "F": 2.5, "YES": True, "KIND": "xor"}

MEANINGS = [
    ("A + B * 2 - 1", 21),
    ("-A // B", -3),
    ("-A % B", 3),
    ("A / B", 2.4),
    ("2 ** B", 32),
    ("1 < B <= 5 < A", True),
    ("A in (1, 12)", True),
    ("A not in [1, 12]", False),
    ("KIND == 'xor' and KIND != 'none'", True),
    ("KIND == 3", False),
    ("A if YES else B", 12),
    ("not YES or Z == 0", True),
    ("Z != 0 and A % Z == 0", False),
    ("Z == 0 or A // Z > 1", True),
    ("1 if Z == 0 else A // Z", 1),
    ("min(A, B, 7) + max(A, B)", 17),
    ("min(A, F)", 2.5),
    ("ceil_div(A, B)", 3),
    ("abs(-B)", 5),
    ("log2(8) + log2(9)", 6),
    ("is_pow2(16) and not is_pow2(12) and not is_pow2(Z)", True),
    ("YES + YES", 2),
    ("true and not false", True),
    ("A\n  + B", 17),
    ("0x10", 16),
]


@pytest.mark.parametrize(("text", "value"), MEANINGS)
def test_expressions_mean_what_they_say(text: str, value: Value) -> None:
    found = parse_expression(text).evaluate(SCOPE)
    assert found == value
    assert type(found) is type(value)


WITHOUT_VALUE = [
    ("A // Z", "division by zero"),
    ("A % Z", "division by zero"),
    ("ceil_div(A, Z)", "division by zero"),
    ("A ** 65", "an exponent is an integer from 0 to 64"),
    ("A ** -1", "an exponent"),
    ("A ** 64", "2**63 or more"),
    ("2 ** 62 * 2", "2**63 or more"),
    ("2.5 ** 64 * 2.5 ** 64", "2**63 or more"),
    ("log2(Z)", "log2 takes a positive number"),
    ("KIND + 1", "'xor' is not a number"),
    ("KIND * 2", "'xor' is not a number"),
    ("KIND % 2", "'xor' is not a number"),
    ("KIND < 2", "'xor' is not a number"),
    ("not KIND", "'xor' is not a number"),
    ("C + 1", "unknown name 'C'"),
]


@pytest.mark.parametrize(("text", "words"), WITHOUT_VALUE)
def test_expressions_without_a_value_say_why(text: str, words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        parse_expression(text).evaluate(SCOPE)
    assert words in caught.value.message


FOREIGN = [
    "",
    " ",
    "A +",
    "A = 1",
    "A; B",
    "A := 1",
    "lambda: 1",
    "[A]",
    "(A, B)",
    "{A: 1}",
    "A[0]",
    "A.real",
    "device",
    "device.x.y",
    "min",
    "min()",
    "min(*A)",
    "min(A, key=B)",
    "ceil_div(1)",
    "print(1)",
    "__import__('os')",
    "(1).__class__",
    "f'{A}'",
    "'a b'",
    "b'a'",
    "None",
    "...",
    "1j",
    "1e999",
    "A is B",
    "A & B",
    "A << 2",
    "A @ B",
    "~A",
    "+A",
    "A in B",
    "A in ()",
    "[x for x in A]",
    "(yield)",
    "await A",
    "A # note",
    "ä + 1",
    "1if A else 2",
    "9" * 19,
    "9" * 1990,
    "A" * 2001,
    "(" * 900 + "A" + ")" * 900,
    "-" * 1990 + "A",
    "not " * 400 + "A",
    "1+" * 60 + "(" * 45 + "-1" * 4 + ")" * 45 + "+" + "-" * 49 + "1",
    "A" + " in (1, 2)" * 3 + "<(" * 30 + "1" + "<(1)<2)" * 30,
    "1<(" * 24 + "1" + ")<1" * 24,
]


@pytest.mark.parametrize("text", FOREIGN)
def test_what_is_not_in_the_language_is_refused(text: str) -> None:
    with pytest.raises(SpaceError) as caught:
        parse_expression(text)
    assert "\n" not in str(caught.value)


INTS = st.one_of(st.integers(-12, 12), st.integers(-(2**63) + 1, 2**63 - 1))
COLUMNS = {
    "I": INTS,
    "J": st.integers(-4, 9),
    "P": st.sampled_from([1, 2, 4, 1024, 2**53, 2**62]),
    "F": st.floats(-1e18, 1e18, allow_nan=False) | st.sampled_from([0.0, -0.5, 3.0]),
    "T": st.booleans(),
    "S": st.sampled_from(["xor", "none", "padded"]),
    "M": st.sampled_from(["auto", 1, 2]),
}
LEAVES = st.one_of(
    st.sampled_from(["I", "J", "P", "F", "T", "S", "M"]),
    st.sampled_from(["0", "1", "2", "7", "0.5", "true", "'xor'"]),
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(
        ["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
    )
    return st.one_of(
        st.builds("({} {} {})".format, inner, binary, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} < {} <= {})".format, inner, inner, inner),
        st.builds("({} in ({}, {}))".format, inner, inner, inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max", "ceil_div"]), inner, inner),
        st.builds("{}({})".format, st.sampled_from(["abs", "log2", "is_pow2"]), inner),
        st.builds("({}({}))".format, st.sampled_from(["-", "not "]), inner),
    )


def _is_parsed(text: str) -> bool:
    """False for an operation on literals that has no value: the parser refuses it."""
    try:
        parse_expression(text)
    except SpaceError:
        return False
    return True


TREES = st.recursive(LEAVES, _larger, max_leaves=7).filter(_is_parsed)
ROWS = st.lists(st.fixed_dictionaries(COLUMNS), min_size=1, max_size=6)
thorough = settings(derandomize=True, max_examples=300)


@thorough
@given(TREES, ROWS)
def test_columns_give_what_rows_give(text: str, rows: list[dict[str, Value]]) -> None:
    expression = parse_expression(text)
    columns = {
        name: np.array([row[name] for row in rows], dtype=object if name == "M" else None)
        for name in COLUMNS
    }
    values, failed = expression.evaluate_columns(columns)
    for row, value, no_value in zip(rows, values.tolist(), failed.tolist(), strict=True):
        expected = _value_or_none(expression, row)
        assert no_value == (expected is None)
        if expected is not None:
            assert value == expected
            assert type(value) is type(expected)


@pytest.mark.parametrize("values", [st.integers(-9, 9), st.integers(-(2**63), 2**63 - 1)])
@given(data=st.data())
def test_codes_are_the_ranks_of_integers(
    values: st.SearchStrategy[int], data: st.DataObject
) -> None:
    """Near integers are ranked by a table, others by sorting."""
    listed = data.draw(st.lists(values, min_size=1, max_size=40))
    ranks = {value: rank for rank, value in enumerate(sorted({*listed}))}
    found, count = codes([column_of(listed)], len(listed))
    assert (found.tolist(), count) == ([ranks[value] for value in listed], len(ranks))


def _value_or_none(expression: Expression, row: dict[str, Value]) -> Value | None:
    try:
        return expression.evaluate(row)
    except SpaceError:
        return None


@thorough
@given(TREES, ROWS)
def test_bounds_never_exclude_what_can_hold(text: str, rows: list[dict[str, Value]]) -> None:
    condition = parse_expression(text)
    bounds = {name: bounds_of_values([row[name] for row in rows]) for name in COLUMNS}
    known = bounds_of_column(column_of([row["I"] for row in rows]))
    by_row = np.broadcast_to(can_hold(condition.node, {**bounds, "I": known}), len(rows))
    for row, possible in zip(rows, by_row.tolist(), strict=True):
        value = _value_or_none(condition, row)
        if value is not None and not isinstance(value, str) and value != 0:
            assert possible


WORDS = st.sampled_from(
    [
        "A",
        "B",
        "0",
        "1",
        "2",
        "63",
        "1.5",
        "(",
        ")",
        "[",
        "]",
        ",",
        ".",
        "+",
        "-",
        "*",
        "/",
        "%",
        "**",
        "//",
        "<",
        ">",
        "==",
        "!=",
        "<=",
        "in",
        "not",
        "and",
        "or",
        "if",
        "else",
        "true",
        "'x'",
        '"',
        "min",
        "max",
        "abs",
        "log2",
        "is_pow2",
        "ceil_div",
        "device",
        "device.x",
        "lambda",
        "for",
        ":",
        "=",
        "!",
        "\\",
        "{",
        "}",
        "@",
        "`",
        ";",
        "#",
        "é",
        "None",
        "is",
        "async",
        "print",
        "__class__",
        "1e9",
        "0x",
        "0b1",
        "_",
        "1_0",
        "f'",
        "\n",
        "\t",
    ]
)


@thorough
@given(st.one_of(st.lists(WORDS, max_size=12).map(" ".join), st.text(max_size=30)))
def test_any_text_is_an_expression_or_a_space_error(text: str) -> None:
    message = ""
    try:
        parse_expression(text).evaluate({"A": 3, "B": 0, "x": 1, "device.x": 4})
    except SpaceError as error:
        message = str(error)
    assert "\n" not in message


def test_threads_parse_expressions_one_after_the_other() -> None:
    """While Python builds a syntax tree, it counts the depth in one place for all threads (CPython
    #106905). A thread that parsed meanwhile, while the collector ran, caused a SystemError."""
    turn, done = threading.Semaphore(0), threading.Semaphore(0)
    ended = threading.Event()

    def between() -> None:
        while turn.acquire() and not ended.is_set():
            parse_expression("1 + 1")
            done.release()

    def let_the_other_thread_in(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and threading.current_thread() is threading.main_thread():
            turn.release()
            done.acquire(timeout=0.01)

    other = threading.Thread(target=between)
    other.start()
    threshold = gc.get_threshold()
    gc.callbacks.append(let_the_other_thread_in)
    gc.set_threshold(50)
    try:
        parse_expression(" + ".join(f"(a{i} * {i} if b{i} > {i} else c{i} % 7)" for i in range(20)))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(let_the_other_thread_in)
        ended.set()
        turn.release()
        other.join()
