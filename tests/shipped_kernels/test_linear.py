"""The linear layer's kernel on a CPU model of wgmma and TMA, and compiled where NVRTC is there."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Value
from tests.patience import PATIENCE_S

from .emulation import EmulatedKernel

needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

LARGE: dict[str, Value] = {"CONSUMER_WARPGROUPS": 2, "ROW_TILES": 1, "BLOCK_N": 64, "STAGES": 2}
LARGE |= {"PERSISTENT": False, "TILE_GROUP": 2, "CLUSTER": 1}
SKINNY: dict[str, Value] = {"CONSUMER_WARPGROUPS": 1, "ROW_TILES": 2, "BLOCK_N": 32, "K_PANELS": 1}
SKINNY |= {"STAGES": 3, "SPLIT_K": 3, "MIN_CTAS": 1, "CLUSTER": 1}


@needs_gpp
@pytest.mark.parametrize(
    ("space", "values", "dtype", "shapes"),
    [
        ("linear_gelu", LARGE, "float16", [(130, 136, 200), (3, 259, 8)]),
        ("linear_skinny", SKINNY, "bfloat16", [(5, 131, 328), (33, 6, 192)]),
        pytest.param(
            "linear_skinny",
            {**SKINNY, "CLUSTER": 4, "SPLIT_K": 2},
            "float16",
            [(33, 390, 264)],
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "linear",
            {**LARGE, "ROW_TILES": 2, "K_PANELS": 2, "CONSUMER_WARPGROUPS": 1, "BLOCK_N": 96},
            "bfloat16",
            [(257, 66, 136)],
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "linear_skinny",
            {**SKINNY, "SPLIT_K": 1, "PERSISTENT": True, "K_PANELS": 2, "ROW_TILES": 1},
            "float16",
            [(40, 200, 264)],
            marks=pytest.mark.soak,
        ),
    ],
)
def test_products_come_out_right(
    space: str,
    values: Mapping[str, Value],
    dtype: str,
    shapes: list[tuple[int, int, int]],
    tmp_path: Path,
) -> None:
    """Edges in every direction, several tiles a group, and parts of unequal length."""
    kernel = EmulatedKernel(tmp_path, space, values, dtype)
    for number, (m, n, k) in enumerate(shapes):
        shape = {"m": m, "n": n, "k": k}
        kind = kernel.problem.input_kinds[number % 4]
        assert kernel.share_of_tolerance(shape, kind, number) <= 1, shape


@needs_gpp
@pytest.mark.parametrize("pingpong", [pytest.param(False, marks=pytest.mark.soak), True])
def test_blocks_of_a_cluster_that_walk_over_tiles_come_out_right(
    pingpong: bool, tmp_path: Path
) -> None:
    """Four blocks have nine or six sets of tiles, whose steps are no multiple of the stages."""
    values = {**LARGE, "CLUSTER": 2, "PERSISTENT": True, "PINGPONG": pingpong, "STAGES": 3}
    kernel = EmulatedKernel(tmp_path, "linear", values, "bfloat16", most_blocks=4)
    assert kernel.share_of_tolerance({"m": 330, "n": 136, "k": 200}) <= 1


MMA: dict[str, Value] = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "WARPS_M": 2, "WARPS_N": 1}
MMA |= {"STAGES": 3, "SPLIT_K": 2, "TILE_GROUP": 2}


@needs_gpp
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (MMA, "float16"),
        pytest.param(
            {**MMA, "BLOCK_M": 16, "WARPS_M": 1, "WARPS_N": 2, "BLOCK_K": 64, "SPLIT_K": 1},
            "bfloat16",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_products_by_mma_sync_come_out_right(
    values: Mapping[str, Value], dtype: str, tmp_path: Path
) -> None:
    kernel = EmulatedKernel(tmp_path, "linear_mma", values, dtype, device="l4")
    for number, (m, n, k) in enumerate([(70, 130, 200), (3, 67, 8)]):
        shape = {"m": m, "n": n, "k": k}
        kind = kernel.problem.input_kinds[number % 4]
        assert kernel.share_of_tolerance(shape, kind, number) <= 1, shape


@needs_gpp
@pytest.mark.soak
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("wait_mbarrier(empty(ring.stage), ring.parity ^ 1);", ""),
        ("      wait_products<1>();\n", ""),
        ("problem.steps * part / SPLIT_K", "problem.steps / SPLIT_K * part"),
        ("(part > 0 ? sum : 0.0f)", "sum"),
        ("+ first * Columns::kRowBytes", ""),
        (
            "if (lane < CLUSTER) arrive_in_block(empty(stage), lane);",
            "if (lane < 1) arrive_at_mbarrier(empty(stage));",
        ),
        ("4 * kConsumersOfTile * CLUSTER", "4 * kConsumersOfTile"),
    ],
)
def test_the_model_sees_a_mistake(right: str, wrong: str, cluster: int, tmp_path: Path) -> None:
    if cluster == 1 and ("first" in right or "CLUSTER" in right):
        pytest.skip("only clusters show it")
    values = {**SKINNY, "STAGES": 2, "CLUSTER": cluster}
    kernel = EmulatedKernel(tmp_path, "linear_skinny", values, "float16", mistakes={right: wrong})
    try:
        shares = [
            kernel.share_of_tolerance({"m": 5, "n": 300, "k": 648}, "normal", s) for s in (1, 2, 3)
        ]
    except AssertionError:
        return
    assert max(shares) > 1


@pytest.mark.parametrize(
    ("space", "device"),
    [
        ("linear", "h200"),
        pytest.param("linear-skinny", "h200", marks=pytest.mark.soak),
        pytest.param("linear-mma", "l4", marks=pytest.mark.soak),
        pytest.param("linear-gelu", "h200", marks=pytest.mark.soak),
        pytest.param("linear-mma", "a100", marks=pytest.mark.soak),
    ],
)
def test_configurations_compile(space: str, device: str, tmp_path: Path) -> None:
    """The default without spills, and one that is drawn."""
    pytest.importorskip("cupy")
    planner = load_setup(find_space(space), device, compile_only=True).planner
    assert planner is not None
    drawn = planner.bound.sample(random.Random(0))
    for number, configuration in enumerate((planner.bound.default(), drawn)):
        (job, *_) = planner.compile_jobs(configuration)
        built = NvrtcCompiler().compile(job, tmp_path / f"{number}.cubin", timeout_s=PATIENCE_S)
        assert not isinstance(built, CompileFailure), built.reason
        figures = (built["spill_store_bytes"], built.get("serialized", 0))
        assert number > 0 or figures == (0, 0)


@needs_gpp
@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("ring.skip(warpgroup * problem.steps);", ""),
        ("ring.skip((CONSUMER_WARPGROUPS - 1) * problem.steps);", ""),
        ("if constexpr (PINGPONG) sync_named(turn_of(warpgroup), 256);", ""),
        ("stride(turns * gridDim.x / CLUSTER)", "stride(gridDim.x / CLUSTER)"),
    ],
)
def test_the_model_sees_a_mistake_in_taking_turns(right: str, wrong: str, tmp_path: Path) -> None:
    values = {**LARGE, "CLUSTER": 1, "PERSISTENT": True, "PINGPONG": True, "STAGES": 3}
    mistakes = {right: wrong}
    kernel = EmulatedKernel(tmp_path, "linear", values, "float16", mistakes=mistakes, most_blocks=2)
    try:
        share = kernel.share_of_tolerance({"m": 330, "n": 136, "k": 200})
    except AssertionError:
        return
    assert share > 1
