"""What the reader of Kernel Tuner scripts makes of single expressions: Python's value, or none."""

from __future__ import annotations

import ast

import pytest

from evotune.cli.kernel_tuner.expression_text import NotWritten, from_text, unparsed


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
