"""Problems of a user's own: which shapes a package can read, and which cases it then takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evotune.errors import UsageError
from evotune.export.case_shapes import call_name
from evotune.export.exporting import export_runs
from evotune.problems import Problem, create_problem
from evotune.runs.folder import RunFolder

from .making import PROBLEM, own_problem

CHECK = """
    def check(self, rows, columns):
        if columns % 8:
            raise ValueError("columns is no multiple of 8")
"""


def dispatch(folder: Path, found: RunFolder) -> dict[str, Any]:
    name = export_runs([found], folder / "pkg").name
    read: dict[str, Any] = json.loads((folder / "pkg" / name / "dispatch.json").read_text())
    return read


def test_extents_are_sums_of_sizes(tmp_path: Path) -> None:
    found = dispatch(tmp_path, own_problem(tmp_path, x="(2 * rows + 1, columns + rows, 3)"))
    rows, columns = {"name": "rows"}, {"name": "columns"}
    assert found["shapes"]["x"] == [
        ["+", ["*", 2, rows], 1],
        ["+", rows, columns],
        3,
    ]
    assert found["shapes"]["out"] == [rows, columns]
    assert found["cases_from"] == {
        "sizes": ["rows", "columns"],
        "constants": {"factor": 2.0},
        "ranges": {"factor": [0.5, 4.0]},
        "variants": {},
        "tuned": [{"rows": 8, "columns": 64, "factor": 2.0}],
    }
    assert found["problem"]["call"] == "scaled"
    assert found["quantities"].keys() == {"elements"}
    (region,) = [each for each in found["served"] if not each["near"]]
    assert region["ranges"]["factor"] == [2.0, 2.0]
    near = next(each for each in found["served"] if each["near"])
    assert near["ranges"]["rows"] == [8, 17]
    assert near["ranges"]["factor"][0] < 2.0 < near["ranges"]["factor"][1]


@pytest.mark.parametrize(
    "x",
    [
        "(rows * columns,)",
        "(rows, columns + columns % 5)",
        "(rows, columns) if rows > 8 else (rows, columns, 1)",
    ],
)
def test_other_shapes_are_refused(tmp_path: Path, x: str) -> None:
    found = own_problem(tmp_path, x=x)
    with pytest.raises(UsageError, match="each extent must be a sum of sizes and numbers"):
        export_runs([found], tmp_path / "pkg")


def test_runs_of_other_compiled_in_sizes_serve_their_own(tmp_path: Path) -> None:
    fixed = '\n    fixed = ("columns",)\n'
    found = []
    for columns, speedup in ((64, 1.3), (128, 0.7)):
        (tmp_path / str(columns)).mkdir()
        found.append(
            own_problem(tmp_path / str(columns), columns=columns, more=fixed, speedup=speedup)
        )
    name = export_runs(found, tmp_path / "pkg").name
    read = json.loads((tmp_path / "pkg" / name / "dispatch.json").read_text())
    assert sorted(region["fixed"]["columns"] for region in read["domain"]) == [64, 128]
    assert {region["fixed"]["columns"] for region in read["served"]} == {64}


def test_a_problem_that_checks_its_sizes_by_code_serves_what_was_checked(tmp_path: Path) -> None:
    found = dispatch(tmp_path, own_problem(tmp_path, more=CHECK))
    assert [region["near"] for region in found["served"]] == [False]
    assert len(found["domain"]) >= 10
    for region in found["domain"]:
        assert all(low == high for low, high in region["ranges"].values())
        assert region["ranges"]["columns"][0] % 8 == 0


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Softmax", "softmax"),
        ("RmsNorm", "rms_norm"),
        ("RMSNorm", "rms_norm"),
        ("Conv2D", "conv2d"),
        ("Check", "check_kernel"),
        ("Attention", "attention_kernel"),
        ("Name", "name_kernel"),  # torch.ops.PACKAGE.name is the package's name
        ("_Loaded", "loaded"),
    ],
)
def test_the_function_is_named_like_the_class(name: str, call: str, tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM.format(name=name, x="(rows, columns)", more=""))
    problem: Problem = create_problem(f"problem.py:{name}", "float32", tmp_path)
    assert call_name(f"problem.py:{name}", problem) == call
    assert call_name("attention", create_problem("attention", "float32")) == "attention"
