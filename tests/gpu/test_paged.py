"""attention_paged.cu in both types, all page sizes, one and several rows a sequence."""

from __future__ import annotations

from pathlib import Path

import pytest

from .searching import failures, random_trials, shipped

pytestmark = pytest.mark.gpu

DECODE = {"sequences": 5, "queries": 1, "heads": 8, "kv_heads": 2, "longest": 1500, "head_dim": 128}
SEVERAL = {"sequences": 9, "queries": 7, "heads": 8, "kv_heads": 2, "longest": 700, "head_dim": 64}
_TRIALS = 8


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("page_size", [1, 16, 64, 256])
def test_random_configurations_pass_the_gate(page_size: int, dtype: str, tmp_path: Path) -> None:
    space = shipped("attention_paged")
    shapes = [{**shape, "page_size": page_size} for shape in (DECODE, SEVERAL)]
    variants = [{"causal": causal} for causal in (False, True)]
    problem = {"dtype": dtype, "shapes": shapes, "held_out": [], "variants": variants}
    space["problem"] |= problem
    trials = random_trials(space, tmp_path, _TRIALS)
    assert len(trials) == _TRIALS
    # An edge shape of more rows may need more shared memory than a block can have.
    assert not failures(trials, ("ok", "resource_limit", "rejected"))
    assert sum(t["confirmed"] for t in trials) == 1
