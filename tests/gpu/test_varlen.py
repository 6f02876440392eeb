"""attention_varlen.cu in both types, both masks, several head sizes, with and without groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from .searching import failures, random_trials, shipped

pytestmark = pytest.mark.gpu

PACKED = {"sequences": 9, "tokens_q": 1500, "tokens_k": 1900, "longest_q": 500, "longest_k": 600}
MANY = {"sequences": 67, "tokens_q": 900, "tokens_k": 900, "longest_q": 130, "longest_k": 130}
HEADS = {"float16": {"heads": 6, "kv_heads": 2}, "bfloat16": {"heads": 4}}
"""Equal in all shapes of a space, since PACK_GQA exists only where heads share keys."""
_TRIALS = 8


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_random_configurations_pass_the_gate(head_dim: int, dtype: str, tmp_path: Path) -> None:
    space = shipped("attention_varlen")
    shapes = [{**shape, **HEADS[dtype], "head_dim": head_dim} for shape in (PACKED, MANY)]
    variants = [{"causal": causal} for causal in (False, True)]
    problem = {"dtype": dtype, "shapes": shapes, "held_out": [], "variants": variants}
    space["problem"] |= problem
    trials = random_trials(space, tmp_path, _TRIALS)
    assert len(trials) == _TRIALS
    assert not failures(trials, ("ok", "resource_limit"))
    assert sum(t["confirmed"] for t in trials) == 1
