"""3_mma.cu with each feature in both types, with other head sizes, with fewer queries than keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .searching import failures, listed_trials, random_trials, shipped

pytestmark = pytest.mark.gpu

_RIGHT: dict[str, Any] = {"causal": True, "alignment": "bottom_right"}
_VARIANTS: dict[str, list[dict[str, Any]]] = {
    "windows": [
        {**_RIGHT, "window_left": 99},
        {"window_left": 64, "window_right": 31, "lse": True},
        {"alignment": "bottom_right", "window_right": 0, "sinks": True},
    ],
    "scores": [
        {**_RIGHT, "softcap": 15.0},
        {"softcap": 30.0, "alibi": True, "sinks": True},
        {"alibi": True, "lse": True},
        {"score_mod": "score - 0.1 * abs(row - column) if head % 2 == 0 else min(score, 2)"},
    ],
    "all": [
        {**_RIGHT, "window_left": 200, "softcap": 20.0, "alibi": True, "sinks": True, "lse": True},
    ],
}
_SHAPES: list[dict[str, Any]] = [
    {"batch": 2, "heads": 8, "kv_heads": 2, "seq_len": 321, "head_dim": 64},
    {"batch": 1, "heads": 8, "kv_heads": 2, "seq_len_q": 5, "seq_len_k": 700, "head_dim": 64},
]
_TRIALS = 8


def _space(dtype: str, shapes: list[dict[str, Any]], variants: list[dict[str, Any]]) -> Any:
    space = shipped("attention_mma_features")
    problem = {"dtype": dtype, "shapes": shapes, "held_out": [], "variants": variants}
    return {**space, "problem": {**space["problem"], **problem}}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("features", _VARIANTS)
def test_random_configurations_pass_the_gate(features: str, dtype: str, tmp_path: Path) -> None:
    space = _space(dtype, _SHAPES, _VARIANTS[features])
    trials = random_trials(space, tmp_path, _TRIALS)
    assert len(trials) == _TRIALS
    assert not failures(trials, ("ok", "resource_limit"))
    assert sum(t["confirmed"] for t in trials) == 1


@pytest.mark.parametrize(
    ("head_dim", "value_dim"), [(80, 80), (112, 112), (192, 192), (256, 256), (192, 128)]
)
def test_other_head_sizes_pass_the_gate(head_dim: int, value_dim: int, tmp_path: Path) -> None:
    shape = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len": 300, "head_dim": head_dim}
    shape |= {"value_dim": value_dim} if value_dim != head_dim else {}
    space = _space("bfloat16", [shape], [{"causal": False}, {"causal": True, "softcap": 20.0}])
    trials = random_trials(space, tmp_path, _TRIALS)
    assert not failures(trials, ("ok", "resource_limit"))
    assert sum(t["confirmed"] for t in trials) == 1


def test_parts_of_the_keys_merge_with_sinks_and_sums(tmp_path: Path) -> None:
    space = _space("float16", _SHAPES[1:], [{**_RIGHT, "sinks": True, "lse": True}])
    base = {"BLOCK_M": 16, "BLOCK_N": 64, "WARPS_Q": 1, "WARPS_KV": 4, "STAGES": 2}
    base |= {"V_WAIT": "early", "Q_IN_REGS": True, "SHARE_QK_SMEM": False, "SWIZZLE": "xor"}
    base |= {"KV_ORDER": "forward", "KV_EVICTION": "normal", "RESCALE_LOG2": 4, "MIN_CTAS": 1}
    base |= {"SKIP_MASKED": True, "PACK_GQA": True, "TILE_ORDER": "by_row", "PERSISTENT": 0}
    merges = [{**base, "SPLIT_KV": 4, "MERGE": merge} for merge in ("counter", "kernel", "cluster")]
    trials = listed_trials(space, tmp_path, merges)
    assert len(trials) == len(merges)
    assert not failures(trials)
