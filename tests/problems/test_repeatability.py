"""Problems whose methods do not repeat their results, and those whose values never vary."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.errors import ProblemMistake
from evotune.problems import UserProblem, create_problem
from evotune.problems.examination import examine, ordinary_case, tiny_case
from evotune.user_code import trust

PROBLEM = """
import torch
from evotune.problems import UserProblem

class Scale(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def operations(self, rows, columns):
        return rows * columns

    def compute(self, x):
        return {"out": 3.0 * x}
"""
IN_ORDER = """
    def compute(self, x):
        order = torch.randperm(x.shape[1])  # as threads may add up in any order
        return {"out": x * (x * x)[:, order].sum(1, keepdim=True)}
"""
MAKE = "\n    def make_input(self, name, shape, kind, generator):\n        return "
DIFFERENT = {  # the method to blame: what is added to the problem
    "compute": """
    def compute(self, x):
        return {"out": x + torch.rand_like(x)}
""",
    "compute, of few elements": """
    def compute(self, x):
        return {"out": torch.dropout(x, 0.002, train=True)}
""",
    "compute, by turns": """
    calls = 0

    def compute(self, x):
        self.calls += 1
        return {"out": x + 0.01 * (self.calls % 2)}
""",
    "reference": """
    def reference(self, case, inputs):
        return {"out": 3.0 * inputs["x"].double() + torch.rand(1)}
""",
    "yardstick_of": """
    def yardstick_of(self, x):
        return {"out": 3.0 * x + torch.rand_like(x)}
""",
    "make_input": MAKE + "torch.randn(shape)\n",
}


def examined(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "problem.py").write_text(text)
    trust.own(text.encode())
    problem = create_problem("problem.py:Scale", "float32", folder)
    assert isinstance(problem, UserProblem)
    cases = [problem.case({"rows": 64, "columns": 512}, {})]
    return examine(problem, tiny_case(problem, cases), ordinary=ordinary_case(problem, cases))


@pytest.mark.parametrize("which", DIFFERENT)
def test_a_method_that_differs_on_equal_arguments_is_a_mistake(tmp_path: Path, which: str) -> None:
    method = which.partition(",")[0]
    with pytest.raises(ProblemMistake, match=rf"problem.py:\d+: {method} gives different"):
        examined(tmp_path, PROBLEM + DIFFERENT[which])


def test_sums_in_any_order_are_no_different_results(tmp_path: Path) -> None:
    assert examined(tmp_path, PROBLEM + IN_ORDER) == ()


def test_an_ordinary_problem_has_no_warnings(tmp_path: Path) -> None:
    assert examined(tmp_path, PROBLEM) == ()


def test_an_input_that_never_varies_is_warned_of(tmp_path: Path) -> None:
    (warning,) = examined(tmp_path, PROBLEM + MAKE + "torch.full(shape, 0.5)\n")
    assert "make_input gives the same x for every seed and kind" in warning
    assert warning.startswith("problem.py:20: ")


def test_an_output_that_never_varies_is_warned_of(tmp_path: Path) -> None:
    text = PROBLEM.replace("3.0 * x}", "torch.ones_like(x)}")
    (warning,) = examined(tmp_path, text)
    assert "compute gives the same out for all inputs" in warning
