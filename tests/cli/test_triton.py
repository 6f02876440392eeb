"""A user's own Triton kernel, from the command line, on a machine without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytest.importorskip("triton")

from .conftest import start

KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def double(x, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, 2 * tl.load(x + places, mask=places < count), mask=places < count)
"""
PROBLEM = """\
from evotune.problems import UserProblem


class Double(UserProblem):
    sizes = ("count",)

    def inputs(self, count):
        return {"x": (count,)}

    def outputs(self, count):
        return {"out": (count,)}

    def operations(self, count):
        return count

    def compute(self, x):
        return {"out": 2 * x}
"""
SPACE = """\
name: double
problem: {name: "problem.py:Double", dtype: float32, shapes: [{count: 1000}]}
kernels:
  double:
    source: double.py
    entry: double
    arguments: [x, out, count]
    launches: [{grid: ["ceil_div(count, BLOCK)"]}]
parameters: {BLOCK: [64, 100], NUM_WARPS: [2, 4]}
baseline: torch:best
"""


def test_compile_tells_figures_and_reasons_and_ignores_the_users_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("double.py", KERNEL), ("problem.py", PROBLEM), ("space.yaml", SPACE)):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    command = ("compile", "space.yaml", "--device", "l4", "--all", "--format", "jsonl")
    process = start(*command, cwd=tmp_path)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, err
    rows = [json.loads(line) for line in out.splitlines()]
    found = {(r["configuration"]["BLOCK"], r["outcome"]) for r in rows}
    assert found == {(64, "ok"), (100, "compile_error")}, rows
    for row in rows:
        if row["outcome"] == "ok":
            assert row["resources"]["registers"] > 0
        else:
            assert "arange's range must be a power of 2" in row["reason"]
