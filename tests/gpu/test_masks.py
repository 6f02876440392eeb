"""Kernels with a mask on a GPU: each kind, each way of broadcasting, both types, rung by rung."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .searching import failures, listed_trials, random_trials, shipped

pytestmark = pytest.mark.gpu

RUNGS = {"scalar": "attention_masks", "mma": "attention_mma_masks"}
_ONE: dict[str, int] = {"mask_batch": 1, "mask_heads": 1, "mask_rows": 1}
_VARIANTS: dict[str, list[dict[str, Any]]] = {
    "padding": [
        {"mask": "padding"},
        {"mask": "padding", "mask_batch": 1, "causal": True},
        {"mask": "padding", "causal": True, "alignment": "bottom_right", "window_left": 99},
    ],
    "bool": [
        {"mask": "bool", "mask_heads": 1},
        {"mask": "bool", "mask_batch": 1, "causal": True},
        {"mask": "bool", "mask_batch": 1, "mask_heads": 1, "lse": True},
    ],
    "bool of few rows": [
        {"mask": "bool"},
        {"mask": "bool", "mask_rows": 1},
        {"mask": "bool", **_ONE, "sinks": True},
    ],
    "bias": [
        {"mask": "bias", "mask_batch": 1},
        {"mask": "bias", "mask_heads": 1, "causal": True},
        {"mask": "bias", "mask_batch": 1, "mask_heads": 1, "lse": True},
    ],
    "bias in float32": [
        {"mask": "bias", "mask_dtype": "float32"},
        {"mask": "bias", "mask_dtype": "float32", "mask_rows": 1, "softcap": 20.0},
        {"mask": "bias", "mask_dtype": "float32", **_ONE, "alibi": True, "sinks": True},
    ],
}
_SHAPES: list[dict[str, Any]] = [
    {"batch": 2, "heads": 8, "kv_heads": 2, "seq_len": 320, "head_dim": 64},
    {"batch": 3, "heads": 8, "kv_heads": 2, "seq_len_q": 33, "seq_len_k": 509, "head_dim": 64},
]
_TRIALS = 6


def _space(
    rung: str, dtype: str, shapes: list[dict[str, Any]], variants: list[dict[str, Any]]
) -> Any:
    space = shipped(RUNGS[rung])
    problem = {"dtype": dtype, "shapes": shapes, "held_out": [], "variants": variants}
    return {**space, "problem": {**space["problem"], **problem}}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", _VARIANTS)
@pytest.mark.parametrize("rung", RUNGS)
def test_random_configurations_pass_the_gate(
    rung: str, kind: str, dtype: str, tmp_path: Path
) -> None:
    space = _space(rung, dtype, _SHAPES, _VARIANTS[kind])
    trials = random_trials(space, tmp_path, _TRIALS)
    assert len(trials) == _TRIALS
    assert not failures(trials, ("ok", "resource_limit"))
    assert sum(t["confirmed"] for t in trials) == 1


@pytest.mark.parametrize("layout", ["bhld", "packed_qkv", "mixed"])
@pytest.mark.parametrize("rung", RUNGS)
def test_strided_masks_and_views_pass_the_gate(rung: str, layout: str, tmp_path: Path) -> None:
    """Rows of these masks lie 0, 16 and 24 elements apart, and heads come before batches."""
    shape = {"batch": 2, "heads": 4, "seq_len": 136, "head_dim": 128, "layout": layout}
    variants = [{"mask": "padding"}, {"mask": "bool"}, {"mask": "bias", "mask_dtype": "float32"}]
    trials = random_trials(_space(rung, "bfloat16", [shape], variants), tmp_path, _TRIALS)
    assert not failures(trials, ("ok", "resource_limit"))
    assert sum(t["confirmed"] for t in trials) == 1


def merging() -> list[dict[str, Any]]:
    """Configurations of the mma rung that merge parts of the keys, in each way."""
    base = {"BLOCK_M": 16, "BLOCK_N": 64, "WARPS_Q": 1, "WARPS_KV": 4, "STAGES": 2}
    base |= {"V_WAIT": "early", "Q_IN_REGS": True, "SHARE_QK_SMEM": False, "SWIZZLE": "xor"}
    base |= {"KV_ORDER": "forward", "KV_EVICTION": "normal", "RESCALE_LOG2": 4, "MIN_CTAS": 1}
    base |= {"SKIP_MASKED": True, "PACK_GQA": False, "TILE_ORDER": "by_row", "PERSISTENT": 0}
    base |= {"MASK_KEYS": 2, "MASK_AHEAD": True, "SPLIT_KV": 4}
    found = [{**base, "MERGE": merge} for merge in ("counter", "kernel", "cluster")]
    last = {"STAGES": 1, "V_WAIT": "late", "KV_ORDER": "reverse", "MASK_AHEAD": False}
    return [*found, {**base, **last, "SPLIT_KV": 1, "MERGE": "counter"}]


def space_of_merging(kind: str) -> Any:
    return _space("mma", "bfloat16", _SHAPES[1:], _VARIANTS[kind])


@pytest.mark.parametrize("kind", ["padding", "bool", "bias in float32"])
def test_parts_of_the_keys_of_the_mma_rung_merge(kind: str, tmp_path: Path) -> None:
    trials = listed_trials(space_of_merging(kind), tmp_path, merging())
    assert len(trials) == len(merging())
    assert not failures(trials)
