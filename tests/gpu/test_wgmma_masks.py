"""5_wgmma.cu with each kind of mask on a Hopper GPU, one part of the kernel after the other.

    pytest -m gpu -x tests/gpu/test_wgmma_masks.py

The gate's masks have holes, rows and batches without keys, -inf and the lowest float, and its edge
shapes each way of broadcasting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .searching import failures, listed_trials, random_trials, shipped
from .test_wgmma import ODD, SMALLEST, STEPS

pytestmark = pytest.mark.gpu

SPACE = shipped("attention_wgmma_masks")
_CAUSAL: dict[str, Any] = {"causal": True}
_RIGHT: dict[str, Any] = {"causal": True, "alignment": "bottom_right"}
_KINDS: dict[str, list[dict[str, Any]]] = {
    "padding": [{"mask": "padding"}, {"mask": "padding", **_CAUSAL}],
    "bool": [{"mask": "bool"}, {"mask": "bool", "mask_heads": 1, **_CAUSAL, "layout": "mixed"}],
    "bias": [{"mask": "bias", "mask_batch": 1}, {"mask": "bias", "layout": "mixed", **_RIGHT}],
    "float32": [{"mask": "bias", "mask_dtype": "float32"}],
}
_FEATURED: list[dict[str, Any]] = [
    {"mask": "padding", **_RIGHT, "window_left": 99, "sinks": True},
    {"mask": "bool", "softcap": 15.0, "lse": True},
    {"mask": "bias", **_RIGHT, "softcap": 15.0, "alibi": True, "lse": True},
]
_SHAPES = [*ODD[:3], {"batch": 3, "heads": 2, "seq_len_q": 65, "seq_len_k": 4500}]


@pytest.fixture(scope="module", autouse=True)
def _a_hopper_gpu() -> None:
    import torch

    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma needs a GPU of compute capability 9.0")


def _space(variants: list[dict[str, Any]], dtype: str = "float16", head_dim: int = 64) -> Any:
    shapes = [{**shape, "head_dim": head_dim} for shape in _SHAPES]
    problem = {"dtype": dtype, "shapes": shapes, "held_out": [], "variants": variants}
    timeouts = {"compile_s": 60.0, "trial_s": 20.0}
    return {**SPACE, "problem": {**SPACE["problem"], **problem}, "timeouts": timeouts}


def one_part_after_the_other() -> list[dict[str, Any]]:
    own = [
        {"PRODUCER_WARPS": 4, "PRODUCER_REGISTERS": 88, "BLOCK_N": 128},
        {"BLOCK_N": 48, "STAGES": 3},
        {"BLOCK_N": 160, "PRODUCER_WARPS": 4},
        {"MASK_VIA": "direct"},
        {"MASK_STAGES": 2, "STAGES": 2},
        {"KEEP_MAXIMUM": True, "OVERLAP": True},
        {"KEEP_MAXIMUM": True, "MASK_VIA": "direct", "CONSUMER_WARPGROUPS": 2, "PING_PONG": True},
    ]
    smallest = {**SMALLEST, "MASK_VIA": "shared", "MASK_STAGES": 1, "KEEP_MAXIMUM": False}
    parts = [{**smallest, **values} for values in [*(values for _, values in STEPS), *own]]
    for values in parts:
        values["MASK_STAGES"] = values["MASK_STAGES"] if values["MASK_VIA"] == "shared" else 1
    parts = [
        values for values in parts if values["CLUSTER"] in SPACE["parameters"]["CLUSTER"]["values"]
    ]
    known = [{n: v for n, v in values.items() if n in SPACE["parameters"]} for values in parts]
    different = {tuple(sorted(values.items())): values for values in known}
    return list(different.values())


@pytest.mark.parametrize("kind", _KINDS)
def test_the_smallest_configuration(kind: str, tmp_path: Path) -> None:
    (smallest, *_) = one_part_after_the_other()
    assert not failures(listed_trials(_space(_KINDS[kind]), tmp_path, [smallest]))


@pytest.mark.parametrize("kind", _KINDS)
def test_one_part_after_the_other_passes_the_gate(kind: str, tmp_path: Path) -> None:
    parts = one_part_after_the_other()
    trials = listed_trials(_space(_KINDS[kind]), tmp_path, parts)
    assert len(trials) == len(parts)
    assert not failures(trials)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("kind", _KINDS)
def test_random_configurations_pass_the_gate(
    kind: str, head_dim: int, dtype: str, tmp_path: Path
) -> None:
    trials = random_trials(_space(_KINDS[kind], dtype, head_dim), tmp_path, 8)
    assert not failures(trials, ("ok", "resource_limit", "compile_limit"))
    assert sum(t["confirmed"] for t in trials) == 1


def test_masks_together_with_features_pass_the_gate(tmp_path: Path) -> None:
    trials = random_trials(_space(_FEATURED), tmp_path, 12)
    assert not failures(trials, ("ok", "resource_limit", "compile_limit"))
    assert sum(t["confirmed"] for t in trials) == 1
