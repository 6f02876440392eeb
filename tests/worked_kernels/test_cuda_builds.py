"""The CUDA kernels compile for GPUs of three generations, without one."""

from __future__ import annotations

import pytest

import evotune
from evotune.runs.compiling import CompileRow

from .expected import RIGHT_ON_A_GPU, SPACES


@pytest.mark.sweep(2)
@pytest.mark.parametrize("device", ["l4", "h200", "a100"])
@pytest.mark.parametrize("name", RIGHT_ON_A_GPU)
def test_the_default_compiles_without_spills(name: str, device: str) -> None:
    rows: list[CompileRow] = []
    evotune.compile(
        SPACES / name / "cuda.yaml",
        device=device,
        sample=1,
        on_row=lambda row, summary: rows.append(row),
    )
    assert [(row.outcome.value, row.spill_bytes) for row in rows] == [("ok", 0)], rows[0].reason
