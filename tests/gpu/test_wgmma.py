"""The Hopper kernel on a Hopper GPU, from the smallest configuration up: a hang is found early.

    pytest -m gpu -x tests/gpu/test_wgmma.py

Each test is an `evotune run` in processes of its own: the gate checks every configuration on every
shape, its edge shapes and adversarial inputs. A kernel that hangs ends as `timeout` after
`timeouts.trial_s`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .searching import failures, listed_trials, random_trials, shipped

pytestmark = pytest.mark.gpu

SPACE = shipped("attention_wgmma")
_TRIAL_S = 20.0

SMALLEST: dict[str, Any] = {
    "CONSUMER_WARPGROUPS": 1,
    "BLOCK_N": 64,
    "STAGES": 1,
    "QUERY_STAGES": 1,
    "PRODUCER_WARPS": 1,
    "PRODUCER_REGISTERS": 24,
    "OVERLAP": False,
    "PING_PONG": False,
    "Q_IN_REGS": False,
    "EXP2_FMA_SHARE": 0,
    "RESCALE_LOG2": 0,
    "WEIGHT_SETS": 1,
    "SKIP_MASKED": False,
    "SPLIT_KV": 1,
    "PACK_GQA": False,
    "CLUSTER": 1,
    "STORE": "direct",
    "L2_PROMOTION": 128,
    "PERSISTENT": 0,
    "SHARE_TAIL": False,
    "WALK": "straight",
    "HEAD_SECTION": 1,
    "ROW_ORDER": "ascending",
    "MIN_CTAS": 1,
}
PLAIN = [{"batch": 1, "heads": 1, "seq_len": 64}]
ODD = [
    {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 129},
    {"batch": 1, "heads": 4, "seq_len_q": 77, "seq_len_k": 300},
    {"batch": 1, "heads": 4, "kv_heads": 1, "seq_len_q": 1, "seq_len_k": 513},
    {"batch": 3, "heads": 16, "seq_len": 1000},  # more tiles than multiprocessors
]


@pytest.fixture(scope="module", autouse=True)
def _a_hopper_gpu() -> None:
    import torch

    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma needs a GPU of compute capability 9.0")


def check(
    folder: Path,
    configurations: Sequence[Mapping[str, Any]],
    shapes: Sequence[Mapping[str, int]] = ODD,
    *,
    head_dim: int = 64,
    dtype: str = "float16",
) -> None:
    """Asserts that configurations are right on these shapes. Each one is given by its differences
    from the smallest."""
    problem = {
        "name": "attention",
        "dtype": dtype,
        "shapes": [{**shape, "head_dim": head_dim} for shape in shapes],
        "variants": [{"causal": False}, {"causal": True}],
    }
    timeouts = {"compile_s": 60.0, "trial_s": _TRIAL_S}
    space = {**SPACE, "problem": problem, "timeouts": timeouts}
    trials = listed_trials(space, folder, [{**SMALLEST, **each} for each in configurations])
    assert len(trials) == len(configurations)
    assert not failures(trials)


# For the part that each step adds see docs/lab/wgmma.md, "What to measure first".
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("smallest", {}),
    ("bulk store", {"STORE": "bulk"}),
    ("two stages", {"STORE": "bulk", "STAGES": 2}),
    ("overlap", {"STAGES": 2, "OVERLAP": True}),
    ("producer warpgroup", {"STAGES": 2, "PRODUCER_WARPS": 4}),
    ("two warpgroups", {"CONSUMER_WARPGROUPS": 2, "STAGES": 2}),
    ("registers move", {"CONSUMER_WARPGROUPS": 2, "STAGES": 2, "PRODUCER_WARPS": 4}),
    ("ping-pong", {"CONSUMER_WARPGROUPS": 2, "STAGES": 2, "PING_PONG": True}),
    ("persistent", {"CONSUMER_WARPGROUPS": 2, "STAGES": 2, "STORE": "bulk", "PERSISTENT": 1}),
    ("last tiles shared", {"STAGES": 2, "PERSISTENT": 1, "SHARE_TAIL": True}),
    (
        "... bulk store, snake",
        {"CONSUMER_WARPGROUPS": 2, "STORE": "bulk", "PERSISTENT": 1, "WALK": "snake"}
        | {"SHARE_TAIL": True},
    ),
    ("... packed", {"STAGES": 2, "PERSISTENT": 1, "SHARE_TAIL": True, "PACK_GQA": True}),
    ("lazy rescale", {"STAGES": 2, "RESCALE_LOG2": 8}),
    ("polynomial", {"STAGES": 2, "EXP2_FMA_SHARE": 8}),
    ("queries in registers", {"STAGES": 2, "Q_IN_REGS": True}),
    ("heads of a group in a tile", {"STAGES": 2, "PACK_GQA": True}),
    ("... bulk store", {"STAGES": 2, "PACK_GQA": True, "STORE": "bulk", "CONSUMER_WARPGROUPS": 2}),
    ("keys split over a cluster", {"STAGES": 2, "SPLIT_KV": 2}),
    ("... of eight", {"STAGES": 2, "SPLIT_KV": 8, "CONSUMER_WARPGROUPS": 2}),
    ("... packed, registers move", {"SPLIT_KV": 4, "PACK_GQA": True, "PRODUCER_WARPS": 4}),
    ("keys for two blocks at once", {"STAGES": 2, "CLUSTER": 2}),
    ("... persistent", {"STAGES": 2, "CLUSTER": 2, "STORE": "bulk", "PERSISTENT": 1}),
    ("... registers move", {"STAGES": 2, "CLUSTER": 2, "PRODUCER_WARPS": 4, "PERSISTENT": 1}),
    ("packed under a product", {"STAGES": 2, "OVERLAP": True, "WEIGHT_SETS": 2}),
    ("unseen keys left out", {"STAGES": 2, "CONSUMER_WARPGROUPS": 2, "SKIP_MASKED": True}),
    ("... in turns", {"CONSUMER_WARPGROUPS": 3, "PING_PONG": True, "SKIP_MASKED": True}),
    ("all at once", SPACE["default"]),
]


def test_one_tile_in_the_smallest_configuration(tmp_path: Path) -> None:
    check(tmp_path, [SMALLEST], PLAIN)


def test_one_part_after_the_other_passes_the_gate(tmp_path: Path) -> None:
    check(tmp_path, [values for _, values in STEPS])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_head_dimensions_and_types(head_dim: int, dtype: str, tmp_path: Path) -> None:
    values = {"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 96, "STAGES": 2, "OVERLAP": True}
    values |= {"PRODUCER_WARPS": 4, "PING_PONG": True, "STORE": "bulk", "RESCALE_LOG2": 8}
    check(tmp_path, [values], head_dim=head_dim, dtype=dtype)


def test_every_pipeline_depth(tmp_path: Path) -> None:
    """Pipelines of even depth also share their last tiles."""
    switches = itertools.product((1, 2, 3, 4, 6), (1, 2, 3), (False, True), (False, True))
    found = []
    for stages, groups, overlap, ping_pong in switches:
        if not (ping_pong and groups == 1):
            values = {"CONSUMER_WARPGROUPS": groups, "STAGES": stages, "BLOCK_N": 64}
            values |= {"OVERLAP": overlap, "PING_PONG": ping_pong, "PRODUCER_WARPS": 4}
            values |= {"STORE": "bulk", "PERSISTENT": 1, "QUERY_STAGES": 2}
            found.append({**values, "PRODUCER_REGISTERS": 32, "SHARE_TAIL": stages % 2 == 0})
    check(tmp_path, found)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_random_configurations_pass_the_gate(head_dim: int, tmp_path: Path) -> None:
    shapes = [{**shape, "head_dim": head_dim} for shape in ODD]
    problem = {**SPACE["problem"], "shapes": shapes, "held_out": []}
    trials = random_trials({**SPACE, "problem": problem}, tmp_path, 32)
    assert not failures(trials, ("ok", "resource_limit"))
    assert sum(t["outcome"] == "ok" for t in trials) >= 0.95 * len(trials)


def test_it_is_tuned_for_views(tmp_path: Path) -> None:
    """Tensor maps have the strides of (B, L, H, D) memory, of packed QKV, and of any other."""
    space = shipped("attention_wgmma")
    variants = [{"causal": True, "layout": name} for name in ("blhd", "packed_qkv", "mixed")]
    shapes = [{"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 129, "head_dim": 64}]
    space["problem"] |= {"shapes": shapes, "held_out": [], "variants": variants}
    trials = random_trials(space, tmp_path, 4)
    assert not failures(trials, ("ok", "resource_limit"))
    (confirmed,) = [trial for trial in trials if trial["confirmed"]]
    assert "far_v" in confirmed["domain"]["layout"].split(", ")
