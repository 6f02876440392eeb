"""Triton reads the text of a kernel's function; needs no Triton."""

from __future__ import annotations

import inspect

import pytest

from evotune.backends.cuda.triton_compiler import module_of

FUNCTION = "def scale(x):\n    return 2 * x\n"


@pytest.mark.parametrize(
    "before",
    ["\f\n", "# part\x1cs\n", "words = 'a\u2028b'\n", "\ufeff", "x = 1\r\n"],
    ids=["form feed", "separator", "line separator", "mark of UTF-8", "carriage return"],
)
def test_the_text_of_a_function_is_found_whatever_stands_before_it(before: str) -> None:
    module = module_of("k.py", f"{before}{FUNCTION}other = 3\n".encode())
    assert inspect.getsource(module.scale) == FUNCTION
