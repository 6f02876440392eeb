"""Paged and packed attention compile for sm_80, sm_89 and sm_90a, the Hopper kernel for sm_90a.
Needs NVRTC, no GPU."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

pytest.importorskip("cupy")

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.errors import EnvironmentProblem
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Configuration, Value
from tests.patience import PATIENCE_S
from tests.sweeps import swept

SPACES = {
    "attention-paged": ("a100", "l4", "h200"),
    "attention-varlen": ("a100", "l4", "h200"),
    "attention-varlen-wgmma": ("h200",),
}
BUILDS = [(space, device) for space, devices in SPACES.items() for device in devices]
_DRAWN = 10
_MOST_SPILLING = 0.2


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    try:
        NvrtcCompiler().version()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))


THREE = {"CONSUMER_WARPGROUPS": 3, "STAGES": 3, "PRODUCER_REGISTERS": 32, "Q_IN_REGS": False}
_WALKS = ("queue", "snake")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("head_dim", "dtype", "values"),
    [
        (128, "float16", {}),
        pytest.param(64, "bfloat16", THREE, marks=pytest.mark.soak),
        pytest.param(64, "float16", {}, marks=pytest.mark.soak),
        pytest.param(96, "bfloat16", {}, marks=pytest.mark.soak),
        pytest.param(32, "float16", THREE, marks=pytest.mark.soak),
        pytest.param(128, "bfloat16", {"PACK_GQA": True}, marks=pytest.mark.soak),
    ],
)
def test_products_of_packed_sequences_are_neither_spilled_nor_serialized(
    head_dim: int, dtype: str, values: Mapping[str, Value], tmp_path: Path
) -> None:
    """Of the default and of the space's first alternative, with masks and without."""
    space = yaml.safe_load(find_space("attention-varlen-wgmma").read_text())
    space["root"] = str(find_space("attention-varlen-wgmma").parents[1])
    shape = {**space["problem"]["shapes"][0], "head_dim": head_dim, "kv_heads": 4}
    variants = [{"causal": False}, {"causal": True}]
    space["problem"] |= {"dtype": dtype, "shapes": [shape], "held_out": [], "variants": variants}
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    planner = load_setup(path, "h100", compile_only=True).planner
    assert planner is not None
    for walk in _WALKS:
        wanted = {**planner.bound.default(), **values, "WALK": walk}
        configuration = planner.bound.repair(wanted, random.Random(0))
        assert configuration is not None
        assert dict(configuration) == wanted
        for job in planner.compile_jobs(configuration):
            built = NvrtcCompiler().compile(job, tmp_path / "kernel.cubin", timeout_s=PATIENCE_S)
            assert not isinstance(built, CompileFailure), built.reason
            assert (built["spill_store_bytes"], built["serialized"]) == (0, 0)


def spilled_bytes(space: str, device: str, drawn: int, folder: Path) -> list[int]:
    """Bytes spilled by the default and so many random configurations, each for one case."""
    planner = load_setup(find_space(space), device, compile_only=True).planner
    assert planner is not None
    rng = random.Random(0)
    found = []
    for values in [planner.bound.default(), *(planner.bound.sample(rng) for _ in range(drawn))]:
        job = planner.compile_jobs(Configuration(values))[0]
        built = NvrtcCompiler().compile(job, folder / "kernel.cubin", timeout_s=PATIENCE_S)
        assert not isinstance(built, CompileFailure), built.reason
        found.append(int(built["spill_store_bytes"]))
    return found


SOON = {("attention-varlen-wgmma", "h200"), ("attention-paged", "h200")}


@pytest.mark.parametrize(("space", "device"), swept(BUILDS, lambda each: each in SOON))
def test_the_default_compiles_without_spills(space: str, device: str, tmp_path: Path) -> None:
    assert spilled_bytes(space, device, 0, tmp_path) == [0]


@pytest.mark.soak
@pytest.mark.parametrize(("space", "device"), BUILDS)
def test_the_spill_rule_refuses_few(space: str, device: str, tmp_path: Path) -> None:
    found = spilled_bytes(space, device, _DRAWN, tmp_path)
    assert sum(each > 64 for each in found) <= _MOST_SPILLING * len(found), found
