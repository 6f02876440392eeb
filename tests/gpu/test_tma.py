"""The short Hopper rung on a Hopper GPU, the smallest configuration first: a hang is found early.

pytest -m gpu -x tests/gpu/test_tma.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .searching import failures, listed_trials, random_trials, shipped

pytestmark = pytest.mark.gpu

SMALLEST: dict[str, Any] = {
    **{"CONSUMER_WARPGROUPS": 1, "BLOCK_N": 64, "STAGES": 1, "VALUES_WAIT": "early"},
    **{"RESCALE_LOG2": 0, "PERSISTENT": False, "MIN_CTAS": 1},
}
STEPS: list[dict[str, Any]] = [
    {},
    {"STAGES": 2},
    {"STAGES": 2, "VALUES_WAIT": "late"},
    {"CONSUMER_WARPGROUPS": 2, "STAGES": 2},
    {"CONSUMER_WARPGROUPS": 2, "STAGES": 2, "PERSISTENT": True, "RESCALE_LOG2": 8},
    {"CONSUMER_WARPGROUPS": 3, "STAGES": 4, "PERSISTENT": True, "VALUES_WAIT": "late"},
    {"CONSUMER_WARPGROUPS": 2, "MIN_CTAS": 2, "PERSISTENT": True, "STAGES": 3},
]
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


def space_on(head_dim: int, dtype: str) -> dict[str, Any]:
    problem = {
        "name": "attention",
        "dtype": dtype,
        "shapes": [{**shape, "head_dim": head_dim} for shape in ODD],
        "variants": [{"causal": False}, {"causal": True}],
    }
    timeouts = {"compile_s": 60.0, "trial_s": 20.0}
    space = shipped("attention_tma")  # whose default needs more registers than head_dim 128 leaves
    default = {**space["default"], **SMALLEST}
    return {**space, "problem": problem, "timeouts": timeouts, "default": default}


def test_each_step_is_right(tmp_path: Path) -> None:
    steps = [{**SMALLEST, **step} for step in STEPS]
    trials = listed_trials(space_on(64, "float16"), tmp_path, steps)
    assert len(trials) == len(STEPS)
    assert not failures(trials)


@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(32, "bfloat16"), (96, "float16"), (128, "bfloat16")]
)
def test_random_configurations_pass_the_gate(head_dim: int, dtype: str, tmp_path: Path) -> None:
    trials = random_trials(space_on(head_dim, dtype), tmp_path, 8)
    assert len(trials) == 8
    assert not failures(trials, ("ok", "resource_limit", "rejected"))
