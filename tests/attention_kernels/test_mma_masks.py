"""3_mma.cu with a mask on the CPU model of a warp; needs no GPU.

`make test` runs a few cases, `make soak` each kind of mask in each way of loading it, mistakes that
must show, and random configurations.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from evotune.problems.problem import Tensors
from evotune.trial import Value
from evotune.workers.executor import CaseJob

from .features_on_the_cpu import Values, outputs_of, planned, small_jobs, wrong_outputs
from .warps import emulation

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SHORT: Values = {
    **{"batch": 2, "heads": 4, "kv_heads": 2, "seq_len_q": 80, "seq_len_k": 80, "head_dim": 32},
}
ODD: Values = {
    "batch": 3,
    "heads": 2,
    "kv_heads": 1,
    "seq_len_q": 9,
    "seq_len_k": 75,
    "head_dim": 32,
}
LONG: Values = {
    "batch": 2,
    "heads": 1,
    "kv_heads": 1,
    "seq_len_q": 20,
    "seq_len_k": 2200,
    "head_dim": 32,
}
BASE: Values = {
    **{"BLOCK_M": 32, "BLOCK_N": 32, "WARPS_Q": 2, "WARPS_KV": 1, "STAGES": 2, "V_WAIT": "late"},
    **{"Q_IN_REGS": False, "SKIP_MASKED": True, "RESCALE_LOG2": 0, "SPLIT_KV": 1, "MIN_CTAS": 1},
    **{"MASK_KEYS": 8, "MASK_AHEAD": True},
}
SPLIT: Values = {**BASE, "BLOCK_M": 16, "WARPS_Q": 1, "SPLIT_KV": 3, "PACK_GQA": True}
TWO: Values = {
    **{**BASE, "BLOCK_M": 16, "WARPS_Q": 1, "WARPS_KV": 2, "KV_ORDER": "reverse"},
    **{"BLOCK_N": 64, "STAGES": 1, "MASK_AHEAD": False},
}
PADDING: Values = {"mask": "padding"}
BOOL: Values = {"mask": "bool", "mask_heads": 1}
BIAS: Values = {"mask": "bias", "mask_batch": 1}
FLOAT32: Values = {"mask": "bias", "mask_dtype": "float32"}
CAUSAL: Values = {"causal": True}
WINDOW: Values = {"window_left": 20, "window_right": 7}
ALL: Values = {
    **{"alignment": "bottom_right", "causal": True, "window_left": 40, "softcap": 8.0},
    **{"alibi": True, "sinks": True, "lse": True},
}
_CASES = 4
_SPACE = "attention-mma-masks"


def complaints(
    folder: Path,
    shape: Values,
    variant: Values,
    values: Values,
    *,
    dtype: str = "float16",
    mistakes: Mapping[str, str] | None = None,
    count: int = _CASES,
    own_inputs: Tensors | None = None,
) -> list[str]:
    """The outputs that are wrong, on the timed case and on small edge cases of the same binary."""
    jobs = small_jobs(planned(_SPACE, folder, shape, variant, dtype), values, count)
    library = emulation.build(folder, jobs[0], mistakes)
    return wrong_outputs(
        jobs, lambda job, places: emulation.launch(library, job.plan, places, seed=0), own_inputs
    )


def _later(*values: object) -> Any:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("variant", "shape", "values"),
    [
        (PADDING, ODD, SPLIT),
        (BOOL, SHORT, TWO),
        ({**FLOAT32, **ALL}, ODD, BASE),
        _later({**PADDING, **CAUSAL}, SHORT, BASE),
        _later({**PADDING, **WINDOW}, LONG, {**BASE, "STAGES": 4, "V_WAIT": "early"}),
        _later({**PADDING, **ALL}, ODD, TWO),
        _later({**BOOL, **CAUSAL}, SHORT, SPLIT),
        _later({**BOOL, **WINDOW}, ODD, {**BASE, "RESCALE_LOG2": 4, "MASK_KEYS": 2}),
        _later({**BOOL, **ALL}, SHORT, {**BASE, "PERSISTENT": 1, "MASK_KEYS": 4}),
        _later(BIAS, SHORT, {**SPLIT, "MERGE": "kernel"}),
        _later({**BIAS, **CAUSAL}, ODD, {**TWO, "RESCALE_LOG2": 8}),
        _later({**BIAS, **WINDOW}, SHORT, {**BASE, "MASK_KEYS": 2, "MASK_AHEAD": False}),
        _later(FLOAT32, SHORT, {**TWO, "MASK_KEYS": 4}),
    ],
)
def test_a_mask_is_right(variant: Values, shape: Values, values: Values, tmp_path: Path) -> None:
    assert not complaints(tmp_path, shape, variant, values)


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("swizzle", ["xor", "pad", "none"])
@pytest.mark.parametrize("mask_keys", [2, 4, 8, 16])
@pytest.mark.parametrize("head_dim", [64, 80, 96])
def test_every_order_of_keys_is_right(
    head_dim: int, mask_keys: int, swizzle: str, dtype: str, tmp_path: Path
) -> None:
    shape = {**SHORT, "head_dim": head_dim, "value_dim": 32, "batch": 1}
    values = {**BASE, "BLOCK_N": 64, "SWIZZLE": swizzle, "MASK_KEYS": mask_keys}
    assert not complaints(tmp_path, shape, {**BOOL, **CAUSAL}, values, dtype=dtype, count=2)


@pytest.mark.parametrize("values", [BASE, _later(TWO), _later(SPLIT)])
@pytest.mark.parametrize("dtype", ["float16", _later("bfloat16")])
def test_keys_that_are_all_far_down_count_as_they_should(
    dtype: str, values: Values, tmp_path: Path
) -> None:
    """Keys of the lowest number count equally if a row has no others; -inf hides a key for good."""
    shape = {**SHORT, "batch": 1}
    planner = planned(_SPACE, tmp_path, shape, FLOAT32, dtype)
    (job,) = small_jobs(planner, values, 1)
    inputs = planner.problem.make_inputs(job.case, "normal", 0)
    bias = inputs["attn_mask"].zero_()
    lowest = torch.finfo(bias.dtype).min
    bias[:, 0], bias[:, 1] = lowest, -torch.inf
    bias[:, 2, :, :40], bias[:, 2, :, 40:] = lowest, -torch.inf
    bias[:, 3, ::4, 33:], bias[:, 3, 1::4, :70] = -1e31, -1e30
    bias[:, 3, 2::4], bias[:, 3, 3::4] = -1e9, -3e7
    library = emulation.build(tmp_path, job)

    def launch(job: CaseJob, places: Mapping[str, int]) -> None:
        emulation.launch(library, job.plan, places, seed=0)

    assert not wrong_outputs([job], launch, inputs)


@pytest.mark.parametrize("values", [SPLIT, _later(BASE), _later({**TWO, "KV_ORDER": "forward"})])
def test_blocks_that_padding_hides_are_not_read(values: Values, tmp_path: Path) -> None:
    """They hold NaN, which would reach the output through a weight of 0."""
    planner = planned(_SPACE, tmp_path, {**SHORT, "seq_len_k": 160}, PADDING, "float16")
    (job,) = small_jobs(planner, values, 1)
    inputs = planner.problem.make_inputs(job.case, "normal", 0)
    mask = inputs["attn_mask"].fill_(1)
    mask[0, ..., :64] = mask[1, ..., 70:] = 0
    mask[0, ..., 100] = 0
    hidden = [(0, slice(0, 64)), (1, slice(128, None))]
    wanted = planner.problem.reference(job.case, inputs)
    for batch, keys in hidden:
        for name in "kv":
            inputs[name][batch, :, keys] = torch.nan
    library = emulation.build(tmp_path, job)
    found = outputs_of(job, inputs, lambda job, at: emulation.launch(library, job.plan, at, seed=0))
    torch.testing.assert_close(found["out"].double(), wanted["out"], rtol=2e-3, atol=2e-3)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong", "variant"),
    [
        ("i / LANE_KEYS * 4 * LANE_KEYS", "i / LANE_KEYS * LANE_KEYS", BOOL),
        ("column / 2 * LANE_KEYS;", "column / 2 * 2;", BOOL),
        ("row.words[i] << i % 8", "row.words[i]", BOOL),
        ("all &= bits[word] ==", "all &= bits[word] <=", BOOL),
        (">> threadIdx.x % 4 * 2;", ";", PADDING),
        ("of_head * head + of_row", "of_row", {"mask": "bool"}),
        ("of_batch * batch + of_head * head + of", "of_head * head + of", {"mask": "bool"}),
        ("query_head(existing), of_row", "0, of_row", {"mask": "bias"}),
        ("tile.problem.softmax_scale, bias)", "1.0f, bias)", BIAS),
        ("softmax_scale, bias);", "softmax_scale, 0.0f);", BIAS),
        ("HAS_SCORE_MOD || MASK_IS_BIAS ? 1.0f", "HAS_SCORE_MOD ? 1.0f", BIAS),
        ("kReachesFar ? kLowestFloat : -1e30f", "-1e30f", FLOAT32),
        ("fabsf(maximum) > 0x1p20f", "false", FLOAT32),
        ("-= part.maximum[i][e / 2]", "-= part.maximum[i][0]", FLOAT32),
        ("shift = fminf(fmaxf(shift, kLowestFloat), -kLowestFloat)", "", {**FLOAT32, "lse": True}),
        ("load_mask(step + 1);", "load_mask(step);", BOOL),
        ("hidden == 0);", "true);", PADDING),
        ("within && (seen != 0 ||", "within && (lane == 9 ||", PADDING),
        ("if (rank >= before)", "if (rank > before)", PADDING),
        ("&& padding_leaves(key)", "", PADDING),
    ],
)
def test_a_mistake_shows(right: str, wrong: str, variant: Values, tmp_path: Path) -> None:
    values = {**BASE, "PACK_GQA": True, "BLOCK_N": 64}
    assert complaints(tmp_path, SHORT, variant, values, mistakes={right: wrong}, count=_CASES + 4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(16))
def test_random_configurations_of_random_masks_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    head_dim, value_dim = rng.choice([(32, 32), (64, 64), (80, 80), (128, 64)])
    shape: dict[str, Value] = {
        **{"batch": rng.choice((1, 2, 3)), "heads": 4, "kv_heads": rng.choice((1, 2, 4))},
        **{"seq_len_q": rng.choice((1, 7, 40, 70)), "seq_len_k": rng.choice((40, 97, 152, 256))},
        **{"head_dim": head_dim, "layout": rng.choice(("bhld", "blhd", "mixed"))},
    }
    shape |= {"value_dim": value_dim} if value_dim != head_dim else {}
    kind = rng.choice(("padding", "bool", "bias"))
    sizes = ("mask_batch",) if kind == "padding" else ("mask_batch", "mask_heads", "mask_rows")
    variant: dict[str, Value] = {"mask": kind, "causal": rng.random() < 0.5}
    variant |= {size: 1 for size in sizes if rng.random() < 0.4}
    variant |= {"mask_dtype": "float32"} if kind == "bias" and rng.random() < 0.4 else {}
    variant |= {"window_left": rng.choice((0, 9, 64))} if rng.random() < 0.3 else {}
    variant |= {name: True for name in ("alibi", "sinks", "lse") if rng.random() < 0.2}
    bound = planned(_SPACE, tmp_path, shape, variant, "float16").bound
    drawn = (dict(bound.sample(rng)) for _ in range(5000))
    values = next(
        each
        for each in drawn
        if int(each["BLOCK_M"]) <= 64
        and int(each["WARPS_Q"]) * int(each["WARPS_KV"]) <= 4
        and (each["SPLIT_KV"] == 1 or each["MERGE"] != "cluster")
    )
    dtype = rng.choice(("float16", "bfloat16"))
    assert not complaints(tmp_path, shape, variant, values, dtype=dtype, count=3)
