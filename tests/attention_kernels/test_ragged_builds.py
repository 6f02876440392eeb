"""Paged and packed attention compile for sm_80, sm_89 and sm_90a. Needs NVRTC, no GPU."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("cupy")

from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.device.launch import CompileFailure
from evotune.engine.setup import load_setup
from evotune.engine.spaces import find_space
from evotune.errors import EnvironmentProblem
from evotune.trial import Configuration

DEVICES = ("a100", "l4", "h200")
SPACES = ("attention-paged", "attention-varlen")
_DRAWN = 10
_MOST_SPILLING = 0.2


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    try:
        NvrtcCompiler().version()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))


def spilled_bytes(space: str, device: str, drawn: int, folder: Path) -> list[int]:
    """Bytes spilled by the default and so many random configurations, each for one case."""
    planner = load_setup(find_space(space), device, compile_only=True).planner
    assert planner is not None
    rng = random.Random(0)
    found = []
    for values in [planner.bound.default(), *(planner.bound.sample(rng) for _ in range(drawn))]:
        job = planner.compile_jobs(Configuration(values))[0]
        built = NvrtcCompiler().compile(job, folder / "kernel.cubin", timeout_s=120)
        assert not isinstance(built, CompileFailure), built.reason
        found.append(int(built["spill_store_bytes"]))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("space", SPACES)
def test_the_default_compiles_without_spills(space: str, device: str, tmp_path: Path) -> None:
    assert spilled_bytes(space, device, 0, tmp_path) == [0]


@pytest.mark.soak
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("space", SPACES)
def test_the_spill_rule_refuses_few(space: str, device: str, tmp_path: Path) -> None:
    found = spilled_bytes(space, device, _DRAWN, tmp_path)
    assert sum(each > 64 for each in found) <= _MOST_SPILLING * len(found), found
