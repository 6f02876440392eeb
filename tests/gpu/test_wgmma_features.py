"""5_wgmma.cu with each feature on a Hopper GPU, one part of the kernel after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .searching import failures, listed_trials, random_trials, shipped
from .test_wgmma import ODD, SMALLEST, STEPS

pytestmark = pytest.mark.gpu

SPACE = shipped("attention_wgmma_features")
_RIGHT: dict[str, Any] = {"causal": True, "alignment": "bottom_right"}
_VARIANTS: list[dict[str, Any]] = [
    {**_RIGHT, "window_left": 99, "sinks": True},
    {"window_left": 64, "window_right": 31, "lse": True},
    {"softcap": 15.0, "alibi": True},
    {"score_mod": "score - 0.1 * abs(row - column) if head % 2 == 0 else min(score, 2)"},
]
_PARTS = [values for _, values in STEPS if values.get("WEIGHT_SETS", 1) == 1]


@pytest.fixture(scope="module", autouse=True)
def _a_hopper_gpu() -> None:
    import torch

    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma needs a GPU of compute capability 9.0")


def _space(
    variants: list[dict[str, Any]], dtype: str = "float16", head_dim: int = 64, value_dim: int = 0
) -> Any:
    sizes = {"head_dim": head_dim, "value_dim": value_dim or head_dim}
    shapes = [{**shape, **sizes} for shape in ODD[:3]]
    problem = {"dtype": dtype, "shapes": shapes, "held_out": [], "variants": variants}
    timeouts = {"compile_s": 60.0, "trial_s": 20.0}
    return {**SPACE, "problem": {**SPACE["problem"], **problem}, "timeouts": timeouts}


def test_the_smallest_configuration_and_windows(tmp_path: Path) -> None:
    assert not failures(listed_trials(_space(_VARIANTS[:1]), tmp_path, [SMALLEST]))


def one_part_after_the_other() -> list[dict[str, Any]]:
    own = [{"BIAS_IN_PRODUCT": True}, {"HALF_BLOCKS": True}, {"KEEP_MAXIMUM": True}]
    return [{**SMALLEST, **values} for values in [*_PARTS, *own]]


def test_one_part_after_the_other_passes_the_gate(tmp_path: Path) -> None:
    parts = one_part_after_the_other()
    trials = listed_trials(_space(_VARIANTS), tmp_path, parts)
    assert len(trials) == len(parts)
    assert not failures(trials)


@pytest.mark.parametrize(("head_dim", "value_dim"), [(192, 128), (96, 64)])
def test_values_narrower_than_keys_pass_the_gate(
    head_dim: int, value_dim: int, tmp_path: Path
) -> None:
    space = _space([*_VARIANTS[:1], {"lse": True}], "float16", head_dim, value_dim)
    trials = random_trials(space, tmp_path, 8)
    assert not failures(trials, ("ok", "resource_limit", "compile_limit"))
    assert sum(t["confirmed"] for t in trials) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_random_configurations_pass_the_gate(head_dim: int, dtype: str, tmp_path: Path) -> None:
    variants = [*_VARIANTS[:1], {**_RIGHT, "softcap": 20.0, "alibi": True, "lse": True}]
    trials = random_trials(_space(variants, dtype, head_dim), tmp_path, 8)
    assert not failures(trials, ("ok", "resource_limit", "compile_limit"))
    assert sum(t["confirmed"] for t in trials) == 1
