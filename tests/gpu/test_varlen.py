"""attention_varlen.cu and attention_varlen_wgmma.cu in both types, both masks, several head sizes,
with and without groups.

    pytest -m gpu -x tests/gpu/test_varlen.py

The Hopper kernel is tried from its smallest configuration up: a hang is found early, and ends as
`timeout`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .searching import failures, listed_trials, random_trials, shipped

pytestmark = pytest.mark.gpu

PACKED = {"sequences": 9, "tokens_q": 1500, "tokens_k": 1900, "longest_q": 500, "longest_k": 600}
MANY = {"sequences": 67, "tokens_q": 900, "tokens_k": 900, "longest_q": 130, "longest_k": 130}
HEADS = {"float16": {"heads": 6, "kv_heads": 2}, "bfloat16": {"heads": 4}}
"""Equal in all shapes of a space, since PACK_GQA exists only where heads share keys."""
ONE_TILE = {"sequences": 1, "tokens_q": 64, "tokens_k": 64, "longest_q": 64, "longest_k": 64}
THOUSANDS = {"sequences": 3000, "tokens_q": 9000, "tokens_k": 30000}
THOUSANDS |= {"longest_q": 70, "longest_k": 90}
LONG = {"sequences": 5, "tokens_q": 9000, "tokens_k": 9000, "longest_q": 4096, "longest_k": 4096}
SMALLEST: dict[str, Any] = {
    **{"CONSUMER_WARPGROUPS": 1, "BLOCK_N": 64, "STAGES": 1, "QUERY_STAGES": 1},
    **{"PING_PONG": False, "Q_IN_REGS": False, "RESCALE_LOG2": 0, "SKIP_MASKED": False},
    **{"HALF_BLOCKS": False},
    **{"PACK_GQA": False, "STORE": "direct", "WALK": "snake", "HEAD_SECTION": 1},
}
PARTS: list[dict[str, Any]] = [
    {"WALK": "queue"},
    {"STORE": "bulk"},
    {"STAGES": 3},
    {"QUERY_STAGES": 2},
    {"SKIP_MASKED": True},
    {"CONSUMER_WARPGROUPS": 2},
    {"PING_PONG": True},
    {"HALF_BLOCKS": True},
    {"KEEP_MAXIMUM": True},
    {"BLOCK_N": 96, "RESCALE_LOG2": 8},
    {"Q_IN_REGS": True, "HEAD_SECTION": 8, "HALF_BLOCKS": False},
]
_TRIALS = 8


def _needs(space: str) -> None:
    if "wgmma" in space and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma needs a GPU of compute capability 9.0")


def one_part_after_the_other() -> list[dict[str, Any]]:
    """The smallest configuration, then with each part of the list added to those before."""
    found = [SMALLEST]
    for part in PARTS:
        found.append({**found[-1], **part})
    return found


@pytest.mark.parametrize("shape", [ONE_TILE, PACKED, LONG, THOUSANDS], ids=lambda s: s["tokens_k"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_hopper_kernel_is_right_part_by_part(
    head_dim: int, shape: dict[str, int], tmp_path: Path
) -> None:
    _needs("wgmma")
    space = shipped("attention_varlen_wgmma")
    shapes = [{**shape, "heads": 4, "kv_heads": 2, "head_dim": head_dim}]
    variants = [{"causal": causal} for causal in (False, True)]
    space["problem"] |= {"shapes": shapes, "held_out": [], "variants": variants}
    space["timeouts"] = {"compile_s": 60, "trial_s": 30}
    configurations = one_part_after_the_other()
    trials = listed_trials(space, tmp_path, configurations)
    assert len(trials) == len(configurations)
    assert not failures(trials)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
@pytest.mark.parametrize("name", ["attention_varlen", "attention_varlen_wgmma"])
def test_random_configurations_pass_the_gate(
    name: str, head_dim: int, dtype: str, tmp_path: Path
) -> None:
    _needs(name)
    space = shipped(name)
    shapes = [{**shape, **HEADS[dtype], "head_dim": head_dim} for shape in (PACKED, MANY)]
    variants = [{"causal": causal} for causal in (False, True)]
    problem = {"dtype": dtype, "shapes": shapes, "held_out": [], "variants": variants}
    space["problem"] |= problem
    trials = random_trials(space, tmp_path, _TRIALS)
    assert len(trials) == _TRIALS
    assert not failures(trials, ("ok", "resource_limit"))
    assert sum(t["confirmed"] for t in trials) == 1
