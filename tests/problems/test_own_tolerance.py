"""A problem's own tolerance takes the place of the derived one, and reports repeat its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evotune.errors import ProblemMistake
from evotune.problems import UserProblem, create_problem
from evotune.problems.examination import examine
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.pool import InputPool

TEXT = """
from evotune.problems import Tensor, Tolerance, UserProblem

class Softmax(UserProblem):
    sizes = ("rows", "columns")
    dtypes = ("float32", "float64")
    tolerance = Tolerance("weights are kept in bfloat16", relative=0.01, absolute=1e-6)

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows, columns), "place": Tensor((rows,), "int32")}

    def operations(self, rows, columns):
        return 5 * rows * columns

    def compute(self, x):
        return {"out": x.softmax(-1), "place": x.argmax(-1).int()}
"""
LINE = 'Tolerance("weights are kept in bfloat16", relative=0.01, absolute=1e-6)'


def made(folder: Path, text: str = TEXT, dtype: str = "float32") -> UserProblem:
    (folder / "own.py").write_text(text)
    problem = create_problem("own.py:Softmax", dtype, folder)
    assert isinstance(problem, UserProblem)
    return problem


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_takes_the_place_of_the_derived_one(tmp_path: Path, dtype: str) -> None:
    problem = made(tmp_path, dtype=dtype)
    case = problem.case({"rows": 8, "columns": 50}, {})
    assert str(problem.tolerance) == ("relative 0.01, absolute 1e-06: weights are kept in bfloat16")
    examine(problem, case)
    for kind in problem.input_kinds:
        wanted = InputPool(problem).get(case, kind, 0)
        right = wanted.inputs["x"].softmax(-1)
        few = torch.where(torch.arange(50) % 5 == 0, 1.009, 1.0)
        for value, is_right in (
            (right.bfloat16().to(right.dtype), True),
            (right * few, True),
            # Not all of them may be off by almost as much; elsewhere most results are near 0.
            (right * 1.009, kind not in ("normal", "ramp")),
            (right * 1.02, False),
            (torch.zeros_like(right), False),
        ):
            holds = LIMITS.hold(errors_against(value.to(right.dtype), wanted.expected["out"]))
            assert holds == is_right, kind
        place = wanted.inputs["x"].argmax(-1).int()
        assert LIMITS.hold(errors_against(place, wanted.expected["place"]))
        assert not LIMITS.hold(errors_against(place + 1, wanted.expected["place"]))


@pytest.mark.parametrize(
    ("tolerance", "why"),
    [
        ("0.01", "tolerance is 0.01, expected a Tolerance with a reason"),
        ('Tolerance("", 0.1)', "tolerance has the reason '', expected a line"),
        ('Tolerance("two\\nlines", 0.1)', "tolerance has the reason 'two\\nlines', expected a"),
        ('Tolerance("a reason")', "tolerance is 0"),
        ('Tolerance("a reason", 1.5)', "tolerance has relative 1.5, expected a number of at least"),
        ('Tolerance("a reason", 0.1, -1)', "tolerance has absolute -1, expected a number of at"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, tolerance: str, why: str) -> None:
    with pytest.raises(ProblemMistake) as caught:
        made(tmp_path, TEXT.replace(LINE, tolerance))
    assert f"own.py:7: {why}" in str(caught.value)


def test_one_that_accepts_zeros_is_a_mistake(tmp_path: Path) -> None:
    problem = made(tmp_path, TEXT.replace(LINE, 'Tolerance("close enough", absolute=2.0)'))
    with pytest.raises(ProblemMistake, match="7: tolerance accepts zeros for all of out"):
        examine(problem, problem.case({"rows": 4, "columns": 20}, {}))


def test_it_has_no_effect_beside_same(tmp_path: Path) -> None:
    own = "\n    def same(self, outputs, reference, inputs):\n        return True\n"
    with pytest.raises(ProblemMistake, match="7: tolerance has no effect: same alone judges"):
        made(tmp_path, TEXT + own)
