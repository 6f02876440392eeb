"""A score modification: its text in C++, its value and its error, and what is refused."""

from __future__ import annotations

import ctypes
import math
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from counting import calls_made

from evotune.backends.base.launch import CompileJob
from evotune.backends.cpu.cpp_compiler import find_compiler
from evotune.problems.attention import Attention
from evotune.problems.attention_features import MACRO, macro, parsed
from evotune.problems.attention_scores import evaluated
from evotune.problems.problem import WrongSymbol

KERNELS = Path(__file__).parents[2] / "kernels" / "attention"
FORMULAS = [
    "score",
    "score - 0.1 * abs(row - column)",
    "score * (head + 1) / 8",
    "score if row // 16 == column // 16 else score - 30",
    "max(score, -4) + min(1, 2.5, row) - column % 7",
    "-score if head % 2 == 0 and not row < column else score / (1 + abs(score))",
    "score + (row - column) // 3 - (row - column) % 5",
    "2 if true or score > 1 else head",
    "row - column if score < 0.5 else score * score",
    "score - 0.000001 * abs(row * row - column * column)",
    "column * 100000 // 3 % 1000 + score",
    "score + (row * column) % 7",
    "score - 0.01 * (row - column) if head % 2 == 0 else score",
    "score + 0.125 * (3 - column + row) if row > 40 or head == 1 else score",
    "score + 3.5 * (column - row) + (column + 2) * 0.1",
    "score - 0.01 * (row - column) if score < column else score",
    "min(score, column - row, -column) - max(column, 7) * 0.05 * (column - row)",
    "score + column - (row * row) % 7 + 0.1 * (column + (row * row) % 5)",
    "score if 0.1 * (row - column) >= 0 else score - 1000",
    "score + 1000 * (0.1 * (row - column))",
    "score - 0.1 * (row - column) / 0.001",
    "score + 1000 * (score + 0.1 * (row - column) if head > 1 else score)",
    "score + (row * 100) % 2147000000 + (row * -100) // 2147000000",
    "score + max(row * row // 2, 3)",
    "max(score, -4, min(1 / (1 + row), score / 2, 7, column))",
    "score - (column - (row * row) % 7) // 3 + (column * ((row * row) % 5)) % 9",
]
_KEYS = 128  # of a block


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("formulas")
    lines = ["#include <cmath>", "#define __device__", "#define __forceinline__ inline"]
    lines.append('#include "parts/key_place.cuh"')
    for number, text in enumerate(FORMULAS):
        name = f"F{number}({MACRO.partition('(')[2]}"
        lines.append(f"#define {name} {macro(text)}")
        call = f"F{number}(s, h, r, c)"
        lines.append(
            f'extern "C" float f{number}(float s, int h, int r, int c) {{ return {call}; }}'
        )
        in_a_block = f"F{number}(s, h, r, (KeyPlace{{c / {_KEYS} * {_KEYS}, c % {_KEYS}}}))"
        lines.append(
            f'extern "C" float g{number}(float s, int h, int r, int c) {{ return {in_a_block}; }}'
        )
    source = folder / "formulas.cpp"
    source.write_text("\n".join(lines) + "\n")
    library = folder / "formulas.so"
    command = [find_compiler(), "-O1", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{KERNELS}"]
    command.append("-Wno-unused-function")
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("number", range(len(FORMULAS)), ids=FORMULAS)
def test_the_text_computes_what_the_tree_means(compiled: ctypes.CDLL, number: int) -> None:
    """With the key as an int, and as GPU kernels have it (parts/key_place.cuh), which may round the
    parts of a sum apart."""
    functions: list[Any] = [compiled[f"{kind}{number}"] for kind in "fg"]
    for function in functions:
        function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float, *[ctypes.c_int] * 3]
    rng = random.Random(number)
    for _ in range(300):
        score = ctypes.c_float(rng.choice((rng.gauss(0, 3), rng.gauss(0, 200), 0.0))).value
        length = rng.choice((200, 70_000))
        head, row, column = rng.randrange(9), rng.randrange(length), rng.randrange(length)
        if rng.randrange(3) == 0:
            column = row
        exact = torch.zeros((), dtype=torch.float64)
        names = {"score": (torch.tensor(score, dtype=torch.float64), exact)}
        for name, value in (("head", head), ("row", row), ("column", column)):
            names[name] = torch.tensor(float(value), dtype=torch.float64), exact
        value, off = evaluated(parsed(FORMULAS[number]), names)
        apart = 2**-22 * (abs(float(value)) + abs(score) + _KEYS / 8)
        for function, further in zip(functions, (1e-30, apart), strict=True):
            found = function(score, head, row, column)
            assert abs(found - float(value)) <= float(off) + further, (score, head, row, column)


@pytest.mark.parametrize("number", range(len(FORMULAS)), ids=FORMULAS)
def test_a_score_that_is_nan_is_as_much_nan_as_in_pytorch(
    compiled: ctypes.CDLL, number: int
) -> None:
    exact = torch.zeros((), dtype=torch.float64)
    for head, row, column in [(0, 3, 70), (1, 70, 3), (2, 50, 50)]:
        numbers = {"score": torch.nan, "head": head, "row": row, "column": column}
        names = {name: (torch.tensor(value).double(), exact) for name, value in numbers.items()}
        value, _ = evaluated(parsed(FORMULAS[number]), names)
        for kind in "fg":
            function: Any = compiled[f"{kind}{number}"]
            function.restype = ctypes.c_float
            function.argtypes = [ctypes.c_float, *[ctypes.c_int] * 3]
            assert math.isnan(function(math.nan, head, row, column)) == bool(value.isnan())


def test_a_tree_of_many_levels_is_read_at_once() -> None:
    text = "score"
    for _ in range(20):
        text = f"score + 0.1 * row if ({text}) > 0 else score"
    calls_made(lambda: macro(text), 1_000_000)  # not twice as many for each level
    assert len(macro(f"min({', '.join(map(str, range(64)))})")) < 30_000


def test_an_error_reaches_through_branches_that_may_go_either_way() -> None:
    exact = torch.zeros(2, dtype=torch.float64)
    score = torch.tensor([0.0, 1.0], dtype=torch.float64)
    names = {"score": (score, exact + 1e-3), "row": (exact, exact)}
    _, off = evaluated(parsed("5 if score > 0 else 2 * score"), names)
    assert off[0] > 5.0
    assert off[1] < 1e-5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("score + length", "unknown name 'length'; known: score, head, row, column"),
        ("score ** 2", r"\*\* is not allowed in a score_mod"),
        ("log2(row)", "log2 is not allowed in a score_mod"),
        ("score +", "not an expression"),
        ("__import__('os')", "is not allowed|unknown|not|expected"),
        ("score // 2", "// takes an integer and a positive number"),
        ("row % (column + 1)", "% takes an integer and a positive number"),
        ("row // 0", "//|division by zero"),
        ("score + 10000000000", "expected a number below"),
        ("score + (row < column)", r"\+ takes numbers"),
        ("score if head % 2 else 0", "if takes a condition, found a number"),
        ("score if not row % 2 else 0", "not takes a condition"),
        ("score if row and column > 2 else 0", "and takes a condition"),
        ("score if row < 3 else true", "two sides of an if"),
        ("score + row * row * row", r"integers of \* may need more than 64 bits"),
        ("score + 'a' * row if head > 1 else score", "expected a number below"),
        ("score + true * row if head > 1 else score", r"\* takes numbers"),
        ("abs(" * 40 + "row" + ")" * 40, "too long"),
        ("", "found nothing"),
    ],
)
def test_what_is_no_such_expression_is_refused_in_one_line(text: str, words: str) -> None:
    shape = {"batch": 1, "heads": 2, "seq_len": 4, "head_dim": 8, "score_mod": text}
    with pytest.raises(WrongSymbol, match=words) as caught:
        Attention("float32").case(shape, {})
    assert "\n" not in str(caught.value)


def test_a_case_has_it_as_a_macro() -> None:
    problem = Attention("float32")
    shape = {"batch": 1, "heads": 2, "seq_len": 4, "head_dim": 8}
    plain = problem.case(shape, {})
    assert problem.formulas(plain) == {"score_mod": (MACRO, "")}
    this = problem.case(shape, {"score_mod": "score  -  row"})
    assert this.label == "(1,2,4,8,score_mod=score - row) full"
    assert problem.formulas(this)["score_mod"][1] == "((score) - (1.0f * (row)))"
    assert problem.place(this).fixed["score_mod"] == "score - row"


def test_a_job_with_it_has_another_key_and_one_more_macro() -> None:
    def job(*formulas: tuple[str, str]) -> CompileJob:
        return CompileJob("cpp", "/", "k.cpp", (("A", 1),), (), "x", "", formulas=formulas)

    assert job().macros == ["-DA=1"]
    assert job((MACRO, "(score)")).macros[1] == "-DSCORE_MOD(score,head,row,column)=(score)"
    assert len({job().key, job((MACRO, "(score)")).key, job((MACRO, "(row)")).key}) == 3
