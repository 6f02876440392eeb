"""A problem and a callable of evotune, written as FlashInfer-Bench's Definition and Solution."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evotune.errors import UsageError
from evotune.formats import flashinfer_bench as bench
from evotune.formats.flashinfer_export import write_data_set
from evotune.space.objects import CppKernel, PythonCallable
from evotune.user_code import run_content
from tests.formats.judging import Judge

DATA = Path(__file__).parent / "data"
PROBLEM = "row_scale.py:RowScale"
SHAPES = [{"rows": 24, "columns": 40}, {"rows": 5, "columns": 40, "floor": 0.25}]


def written(folder: Path) -> Path:
    """The solution's file."""
    *_, solution = write_data_set(
        folder,
        PROBLEM,
        dtype="float32",
        shapes=SHAPES,
        name="row_scale",
        root=DATA,
        kernel=PythonCallable("row_scale_callable.py", "make"),
        configuration={"ROWS": 4},
    )
    return solution


def test_a_problem_becomes_a_definition(tmp_path: Path) -> None:
    written(tmp_path)
    definition = bench.read_definition(tmp_path / "definitions" / "evotune" / "row_scale.json")
    assert definition.constants == {"columns": 40}
    assert definition.variables == ["rows", "bounds_0"]
    assert definition.constraints == ["bounds_0 == 2 * rows + 1"]
    assert list(definition.inputs) == ["x", "bounds", "floor"]
    assert definition.outputs["width"].shape == ["rows"]
    path = tmp_path / "workloads" / "evotune" / "row_scale.jsonl"
    first, second = bench.read_traces(path, definition)
    assert first.workload.axes == {"rows": 24, "bounds_0": 49}
    assert second.workload.inputs["floor"] == bench.ScalarInput(0.25)
    module = run_content("written_reference", "reference.py", definition.reference.encode())
    x, bounds = torch.randn(3, 40), torch.arange(7.0)
    scaled, width = module.run(x, bounds, 0.5)
    torch.testing.assert_close(scaled, x / x.abs().amax(-1, keepdim=True).clamp(min=0.5))
    assert width.tolist() == [4.0, 4.0, 4.0]


@pytest.mark.soak
def test_a_callable_becomes_a_solution_that_passes(tmp_path: Path, judge: Judge) -> None:
    verdict = judge.judge(written(tmp_path))
    assert verdict.passed, verdict.reason


def test_the_package_builds_and_calls_the_solution(tmp_path: Path) -> None:
    data = pytest.importorskip("flashinfer_bench.data")
    from flashinfer_bench.compile.builders.python_builder import PythonBuilder

    written(tmp_path)
    found = data.TraceSet.from_path(str(tmp_path))
    definition, (solution,) = found.definitions["row_scale"], found.solutions["row_scale"]
    runnable = PythonBuilder().build(definition, solution)
    x, bounds = torch.randn(3, 40), torch.arange(7.0)
    scaled, width = runnable.call_value_returning(x, bounds, 0.5)
    torch.testing.assert_close(scaled, x / x.abs().amax(-1, keepdim=True).clamp(min=0.5))
    assert width.tolist() == [4.0, 4.0, 4.0]


def test_what_the_format_cannot_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no flags, optional tensors or `same`"):
        write_data_set(
            tmp_path,
            "row_scale.py:Keyed",
            dtype="float32",
            shapes=SHAPES,
            name="keyed",
            root=DATA,
        )
    with pytest.raises(UsageError, match="a Definition has no float64"):
        write_data_set(
            tmp_path,
            "wide.py:Wide",
            dtype="float64",
            shapes=SHAPES[:1],
            name="wide",
            root=wide(tmp_path),
        )
    with pytest.raises(UsageError, match="language cpp: only callables in Python"):
        write_data_set(
            tmp_path,
            PROBLEM,
            dtype="float32",
            shapes=SHAPES,
            name="row_scale",
            root=DATA,
            kernel=CppKernel("k.cpp", "k"),
        )


def wide(folder: Path) -> Path:
    text = (DATA / "row_scale.py").read_text().replace("RowScale", "Wide")
    text = text.replace("    sizes =", '    dtypes = ("float64",)\n    sizes =', 1)
    (folder / "wide.py").write_text(text)
    return folder
