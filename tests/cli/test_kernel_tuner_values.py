"""What the reader of Kernel Tuner scripts makes of single expressions: Python's value, or none."""

from __future__ import annotations

import ast

import pytest

from evotune.cli.kernel_tuner.expression_text import NotWritten, from_text, unparsed
from evotune.cli.kernel_tuner.expressions import Evaluator
from evotune.cli.kernel_tuner.values import Dotted, Number, Unknown, Value


def tunable(name: str) -> ast.expr | None:
    return ast.Name(name, ast.Load())


@pytest.mark.parametrize(
    ("text", "written"),
    [("int(bx / 3) <= 8", "bx // 3 <= 8"), ("round(bx) <= 8", "bx <= 8"),
     ("round(int(bx / 3)) <= 8", "bx // 3 <= 8")],
)  # fmt: skip
def test_int_of_a_quotient_is_a_whole_division(text: str, written: str) -> None:
    assert unparsed(from_text(text, tunable)) == written


@pytest.mark.parametrize("text", ["round(bx / 3)", "round(bx / 3 + 1)", "int(bx * 0.5)"])
def test_a_rounding_that_no_operator_does_is_not_written(text: str) -> None:
    with pytest.raises(NotWritten, match="is not in the language of constraints"):
        from_text(f"{text} <= 8", tunable)


NAMES: dict[str, Value] = {"np": Dotted("numpy")}


def evaluated(text: str) -> Value:
    return Evaluator("tune.py").evaluate(ast.parse(text, mode="eval").body, dict(NAMES))


@pytest.mark.parametrize(
    "text",
    ["np.arange(0, 10, step=2)", "np.linspace(0, 1, 5, retstep=True)",
     "sorted([1, 2], reverse=True)", "sorted([1, 2], key=abs)"],
)  # fmt: skip
def test_a_keyword_that_changes_the_result_is_not_overlooked(text: str) -> None:
    found = evaluated(text)
    assert isinstance(found, Unknown)
    assert "with the keyword" in found.why


@pytest.mark.parametrize(
    ("text", "length"),
    [("np.arange(0, 10, 2, dtype=np.float32)", 5), ("np.linspace(0, 1, num=7)", 7),
     ("np.linspace(0, 1, 5, endpoint=False)", 5), ("sorted([3, 1, 2])", 3)],
)  # fmt: skip
def test_other_keywords_are_read(text: str, length: int) -> None:
    found = evaluated(f"len({text})")
    assert isinstance(found, Number)
    assert found.value == length


@pytest.mark.parametrize(
    ("text", "value"),
    [("0 or 1024", 1024), ("3 or 1024", 3), ("0 and 5", 0), ("2 and 5", 5), ("0 or 2 and 7", 7),
     ("0 or 1 > 2", 0), ("3 or x", 3)],
)  # fmt: skip
def test_or_and_and_give_the_operand_that_decides(text: str, value: int) -> None:
    found = evaluated(text)
    assert isinstance(found, Number)
    assert found.value == value


def test_an_operand_that_is_not_known_decides_nothing() -> None:
    assert isinstance(evaluated("0 or x"), Unknown)
    assert isinstance(evaluated("x or 3"), Unknown)


@pytest.mark.parametrize(
    ("text", "value"),
    [("np.power(2, 20)", 1 << 20), ("np.maximum(4, 16)", 16), ("np.minimum(4, 16)", 4),
     ("np.add(4, 16)", 20), ("np.subtract(4, 16)", -12), ("np.multiply(4, 16)", 64),
     ("np.divide(4, 16)", 0.25)],
)  # fmt: skip
def test_an_elementwise_function_of_two_numbers_is_a_number(text: str, value: float) -> None:
    found = evaluated(text)
    assert isinstance(found, Number)
    assert found.value == value


@pytest.mark.parametrize("text", ["np.square(4)", "np.tanh(4)", "np.maximum(1, 2, 3)"])
def test_another_elementwise_function_of_numbers_is_not_followed(text: str) -> None:
    found = evaluated(text)
    assert isinstance(found, Unknown)
    assert found.why.endswith("() of numbers alone is not followed")
