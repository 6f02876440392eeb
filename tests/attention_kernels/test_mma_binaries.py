"""3_mma.cu has binaries for contiguous tensors, for views, and for views of measured heads; needs
NVRTC, no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cupy")

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cuda.compiler import NvrtcCompiler, nvrtc_version
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from tests.patience import PATIENCE_S
from tests.sweeps import swept

from .mma_binaries import DEVICES, TABLE, sha256

ROWS: list[dict[str, Any]] = json.loads(TABLE.read_text())["rows"]


def require_the_tables_compiler() -> None:
    known = json.loads(TABLE.read_text())["nvrtc"]
    if list(nvrtc_version()) != known:
        pytest.skip(f"the table is of NVRTC {known[0]}.{known[1]}")


def test_the_default_for_contiguous_tensors_has_the_machine_code_of_the_table() -> None:
    require_the_tables_compiler()
    row = ROWS[0]
    assert sha256(row["space"], "h200", row["configuration"], 0) == row["h200"]


@pytest.mark.soak
@pytest.mark.parametrize("number", range(len(ROWS)))
def test_every_binary_for_contiguous_tensors_is_that_of_the_table(number: int) -> None:
    require_the_tables_compiler()
    row = ROWS[number]
    for device in DEVICES:
        assert sha256(row["space"], device, row["configuration"], number) == row[device]


@pytest.mark.soak
@pytest.mark.parametrize("device", swept(("a100", "l4", "h200"), lambda device: device == "h200"))
def test_the_binaries_for_views_compile_without_spills(device: str, tmp_path: Path) -> None:
    planner = load_setup(find_space("attention-mma"), device, compile_only=True).planner
    assert planner is not None
    cases = planner.proposal(0, planner.bound.default(), confirm=True).cases
    jobs = {
        dict(case.compile.defines)["K_ROW"]: case.compile
        for case in cases
        if dict(case.compile.defines)["STRIDED"]
    }
    assert set(jobs) == {0, 8 * 64}
    for job in jobs.values():
        found = NvrtcCompiler().compile(job, tmp_path / "kernel.cubin", timeout_s=PATIENCE_S)
        assert not isinstance(found, CompileFailure), found.reason
        assert found["spill_store_bytes"] == 0
