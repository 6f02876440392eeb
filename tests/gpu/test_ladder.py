"""Every rung of the attention ladder in both types, all head sizes, both masks, grouped heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from .searching import failures, random_trials, shipped

pytestmark = pytest.mark.gpu

SHAPES = [
    {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len": 200, "head_dim": 32},
    {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 129, "head_dim": 64},
    {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 77, "seq_len_k": 300, "head_dim": 96},
    {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 1, "seq_len_k": 513, "head_dim": 128},
]
_TRIALS = 8


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rung", ["scalar", "wmma", "mma"])
def test_random_configurations_pass_the_gate(rung: str, dtype: str, tmp_path: Path) -> None:
    space = shipped(f"attention_{rung}")
    space["problem"] |= {"dtype": dtype, "shapes": SHAPES, "held_out": []}
    trials = random_trials(space, tmp_path, _TRIALS)
    assert len(trials) == _TRIALS
    assert not failures(trials, ("ok", "resource_limit"))
    assert sum(t["confirmed"] for t in trials) == 1


@pytest.mark.parametrize("layout", ["bhld", "blhd", "packed_qkv", "mixed"])
def test_mma_is_right_on_views_whatever_it_was_tuned_for(layout: str, tmp_path: Path) -> None:
    """A champion is checked with both binaries: for contiguous tensors and for views."""
    space = shipped("attention_mma")
    shapes = [{"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 129, "head_dim": 64}]
    variants = [{"causal": causal, "layout": layout} for causal in (False, True)]
    space["problem"] |= {"shapes": shapes, "held_out": [], "variants": variants}
    trials = random_trials(space, tmp_path, _TRIALS)
    assert not failures(trials, ("ok", "resource_limit"))
    (confirmed,) = [trial for trial in trials if trial["confirmed"]]
    checked = confirmed["domain"]["layout"].split(", ")
    assert {"contiguous", "blhd", "packed_qkv", "mixed", "far_q", "far_v"} <= set(checked)
