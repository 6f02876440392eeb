"""5_wgmma.cu with a mask on the CPU model of Hopper; needs no GPU.

`make test` runs a case of each kind, `make soak` also each way to bring the mask, mistakes that
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

from evotune.workers.executor import CaseJob

from .features_on_the_cpu import Values, outputs_of, planned, small_jobs, wrong_outputs
from .hopper import emulation

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SHORT: Values = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 100, "head_dim": 32}
ODD: Values = {**SHORT, "seq_len": 77}
LATE: Values = {
    **{"batch": 3, "heads": 4, "kv_heads": 2, "seq_len_q": 7, "seq_len_k": 97, "head_dim": 32},
}
LONG: Values = {**LATE, "batch": 2, "seq_len_q": 70, "seq_len_k": 1300}  # more than 32 blocks
MANY: Values = {**SHORT, "batch": 40, "seq_len": 130}  # more tiles than blocks of threads
ONE: Values = {
    **{"CONSUMER_WARPGROUPS": 1, "BLOCK_N": 32, "STAGES": 2, "QUERY_STAGES": 1, "MIN_CTAS": 1},
    **{"PING_PONG": False, "RESCALE_LOG2": 0},
}
TWO: Values = {
    **{"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 32, "STAGES": 2, "PING_PONG": True},
    **{"SKIP_MASKED": True},
}
SPLIT: Values = {
    **{**ONE, "SPLIT_KV": 2, "PERSISTENT": 0, "WALK": "straight", "STORE": "direct"},
    **{"PACK_GQA": True, "OVERLAP": False},
}
CLUSTER: Values = {**TWO, "CLUSTER": 2, "STORE": "direct"}
TAIL: Values = {**ONE, "SHARE_TAIL": True}
KEPT: Values = {"KEEP_MAXIMUM": True, "HIDE_ENDS": True, "STORE": "bulk", "QUERY_STAGES": 2}
WARP: Values = {"PRODUCER_WARPS": 1}
DIRECT: Values = {"MASK_VIA": "direct"}
SHARED: Values = {"MASK_VIA": "shared", "MASK_STAGES": 1}
PADDING: Values = {"mask": "padding"}
BOOL: Values = {"mask": "bool"}
ROWS: Values = {"mask": "bool", "mask_heads": 1}
BIAS: Values = {"mask": "bias"}
HEADS: Values = {"mask": "bias", "mask_batch": 1}
FLOAT: Values = {"mask": "bias", "mask_dtype": "float32"}
CAUSAL: Values = {"causal": True}
RIGHT: Values = {"causal": True, "alignment": "bottom_right"}
ALL: Values = {
    **{**RIGHT, "window_left": 60, "softcap": 8.0, "alibi": True, "sinks": True, "lse": True},
}
MOD: Values = {"score_mod": "score - 0.1 * abs(row - column) if head % 2 == 0 else score / 2"}
MIXED: Values = {"layout": "mixed"}


def complaints(
    folder: Path,
    shape: Values,
    variant: Values,
    values: Values,
    mistakes: Mapping[str, str] | None = None,
    *,
    dtype: str = "float16",
    seeds: int = 1,
) -> list[str]:
    planner = planned("attention-wgmma-masks", folder, shape, variant, dtype)
    jobs = small_jobs(planner, values, count=3)
    library = emulation.build(folder, jobs[0].compile, mistakes)
    found = []
    for seed in range(1, seeds + 1):

        def launch(job: CaseJob, places: Mapping[str, int], seed: int = seed) -> None:
            emulation.launch(library, job.plan, places, seed=seed)

        found += wrong_outputs(jobs, launch)
    return found


def _later(*values: object) -> Any:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("variant", "shape", "values"),
    [
        ({**PADDING, **CAUSAL}, SHORT, TWO),
        _later(PADDING, LATE, ONE),
        _later(PADDING, LONG, {**TWO, **WARP, **KEPT}),
        _later({**PADDING, **MIXED}, ODD, {**ONE, "BLOCK_N": 48}),
        _later({**PADDING, "mask_batch": 1}, LONG, {**SPLIT, "SPLIT_KV": 4}),
        _later({**PADDING, **RIGHT}, LATE, CLUSTER),
        _later({**PADDING, **CAUSAL}, MANY, {**TWO, **KEPT}),
        _later(PADDING, SHORT, TAIL),
        _later({**PADDING, **CAUSAL, "window_left": 40}, SHORT, {**TWO, "BLOCK_N": 160}),
        _later({**PADDING, **ALL}, LATE, TWO),
    ],
)
def test_padding_is_right(variant: Values, shape: Values, values: Values, tmp_path: Path) -> None:
    assert not complaints(tmp_path, shape, variant, values)


@pytest.mark.parametrize(
    ("variant", "shape", "values"),
    [
        ({**ROWS, **MIXED}, ODD, {**ONE, **KEPT, "BLOCK_N": 48}),
        _later({**BOOL, **CAUSAL}, SHORT, TWO),
        _later(BOOL, MANY, {**TWO, **KEPT, **WARP}),
        _later({**BOOL, "mask_rows": 1}, LATE, {**SPLIT, "PRODUCER_REGISTERS": 88}),
        _later({**BOOL, "mask_batch": 1, **RIGHT}, LATE, {**ONE, "PACK_GQA": True}),
        _later({**ROWS, **CAUSAL}, LONG, {**TWO, "BLOCK_N": 160, "STAGES": 1}),
        _later(BOOL, SHORT, CLUSTER),
        _later(BOOL, SHORT, TAIL),
        _later({**ROWS, "window_left": 30, "window_right": 9}, SHORT, {**TWO, "OVERLAP": False}),
        _later({**BOOL, **ALL}, LATE, TWO),
        _later({**BOOL, **MOD}, SHORT, ONE),
    ],
)
def test_a_boolean_mask_is_right(
    variant: Values, shape: Values, values: Values, tmp_path: Path
) -> None:
    assert not complaints(tmp_path, shape, variant, values)


@pytest.mark.parametrize(
    ("variant", "shape", "values", "dtype"),
    [
        (HEADS, SHORT, {**TWO, **SHARED}, "float16"),
        _later({**HEADS, **CAUSAL}, SHORT, {**TWO, **SHARED, "MASK_STAGES": 3}, "bfloat16"),
        _later({**BIAS, **MIXED}, ODD, {**ONE, **SHARED, "BLOCK_N": 48}, "float16"),
        _later({**BIAS, **MIXED}, ODD, {**ONE, **DIRECT, "BLOCK_N": 48}, "bfloat16"),
        _later(HEADS, MANY, {**TWO, **KEPT, **SHARED}, "bfloat16"),
        _later(HEADS, MANY, {**TWO, **KEPT, **DIRECT}, "float16"),
        _later(FLOAT, SHORT, {**TWO, **KEPT, **SHARED}, "float16"),
        _later({**FLOAT, **CAUSAL}, ODD, {**ONE, **DIRECT}, "bfloat16"),
        _later({**BIAS, "mask_rows": 1}, LATE, {**SPLIT, **SHARED}, "bfloat16"),
        _later({**BIAS, **RIGHT}, LATE, {**ONE, **SHARED, **WARP, "PACK_GQA": True}, "float16"),
        _later(FLOAT, SHORT, {**CLUSTER, **SHARED}, "bfloat16"),
        _later({**BIAS, "lse": True}, SHORT, {**TAIL, **DIRECT}, "bfloat16"),
        _later({**BIAS, **CAUSAL}, SHORT, {**TWO, **SHARED, "OVERLAP": False}, "float16"),
        _later({**FLOAT, "window_left": 30}, SHORT, {**TWO, **SHARED}, "float16"),
        _later({**BIAS, **ALL}, LATE, {**TWO, **SHARED}, "bfloat16"),
        _later({**FLOAT, **MOD}, SHORT, {**ONE, **DIRECT}, "float16"),
    ],
)
def test_a_bias_is_right(
    variant: Values, shape: Values, values: Values, dtype: str, tmp_path: Path
) -> None:
    assert not complaints(tmp_path, shape, variant, values, dtype=dtype)


@pytest.mark.parametrize(
    ("variant", "values"),
    [(PADDING, TWO), _later(PADDING, CLUSTER), _later(ROWS, TWO), _later(ROWS, {**ONE, **WARP})],
)
def test_blocks_of_hidden_keys_are_not_read(
    variant: Values, values: Values, tmp_path: Path
) -> None:
    """NaN there would reach the output through a weight of 0."""
    planner = planned(
        "attention-wgmma-masks", tmp_path, {**SHORT, "seq_len": 160}, variant, "float16"
    )
    (job,) = small_jobs(planner, values, 1)
    library = emulation.build(tmp_path, job.compile)

    def launch(job: CaseJob, places: Mapping[str, int]) -> None:
        emulation.launch(library, job.plan, places, seed=2)

    inputs = planner.problem.make_inputs(job.case, "normal", 0)
    mask = torch.ones_like(inputs["attn_mask"])
    mask[0, ..., 32:96] = 0  # two blocks of 32 between others
    mask[1, ..., 100:] = 0  # a part of a block, and the last one
    inputs["attn_mask"] = mask
    assert not wrong_outputs([job], launch, inputs)
    wanted = outputs_of(job, inputs, launch)["out"]
    for name in "kv":
        inputs[name][0, :, 32:96] = torch.nan
        inputs[name][1, :, 128:] = torch.nan
    assert torch.equal(outputs_of(job, inputs, launch)["out"], wanted)


@pytest.mark.soak
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("variant", [{**PADDING, **CAUSAL}, {**ROWS, **CAUSAL}, HEADS])
def test_no_schedule_deadlocks(variant: Values, stages: int, tmp_path: Path) -> None:
    for overlap in (False, True):
        for groups in (1, 2, 3):
            values: Values = {
                **{"CONSUMER_WARPGROUPS": groups, "STAGES": stages, "BLOCK_N": 32},
                **{"OVERLAP": overlap, "PING_PONG": groups > 1, "MASK_STAGES": 1},
                **{"QUERY_STAGES": 1 + stages % 2, "PRODUCER_REGISTERS": 32},
            }
            assert not complaints(tmp_path, SHORT, variant, values, seeds=6), values


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong", "variant", "values"),
    [
        ("bits |= bits >> 7;", "bits |= bits >> 8;", ROWS, {}),
        ("(low >> 1 & kEven)", "(low & kEven)", PADDING, {}),
        ("STAGES + 1, kBitWords", "STAGES, kBitWords", ROWS, {"STAGES": 1}),
        ("slots.stage, 64 * group + row_of(half)", "slots.stage, row_of(half)", ROWS, {}),
        ("      if (masked) rows[half]", "      if (false) rows[half]", {**PADDING, **CAUSAL}, {}),
        ("(CAUSAL && at < masked)", "(CAUSAL && at + 1 < masked)", {**PADDING, **CAUSAL}, {}),
        ("problem.mask.in_batch(batch)", "problem.mask.in_batch(0)", PADDING, {}),
        ("template at<MaskElement>(head_of(row % 64)", "template at<MaskElement>(head_of(0)", BOOL,
         {"PACK_GQA": True}),
        ("step = from + 32;", "step = from + 33;", PADDING, {"BLOCK_N": 32}),
        ("2 * step + last", "2 * step", PADDING, {}),
        ("if (any_of_named(kMaskMeeting, 32 * kMaskWarps, sees)", "if (sees", ROWS, {}),
        ("    wait_mbarrier(mask_full(tiles.stage), tiles.parity);\n    bias.open", "    bias.open",
         BIAS, SHARED),
        ("wait_mbarrier(mask_empty(tiles.stage), tiles.parity ^ 1);", "", BIAS, SHARED),
        ("half * 8 * kMaskRowBytes", "half * kMaskRowBytes", BIAS, SHARED),
        ("keys * kMaskBytes - 16", "(keys - 8) * kMaskBytes - 16", {**BIAS, **MIXED}, SHARED),
        ("batch = tile_head % of.batches;", "batch = tile_head / of.batches;", HEADS, SHARED),
        ("SCORES_CHANGE ? 1.0f : scale", "1.0f", BIAS, DIRECT),
        ("row + threadIdx.x % 32 / 4 + 8 * half", "row + threadIdx.x % 32 / 4", BIAS, DIRECT),
        ("kReachesFar && maximum < -0x1p100f", "false", FLOAT, DIRECT),
    ],
)  # fmt: skip
def test_a_mistake_shows(
    right: str, wrong: str, variant: Values, values: Values, tmp_path: Path
) -> None:
    shape = LONG if "from + 32" in right else ODD if "layout" in variant else SHORT
    given = {**TWO, "PRODUCER_REGISTERS": 56, **values}
    assert complaints(tmp_path, shape, variant, given, {right: wrong}, seeds=6)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_random_configurations_are_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    mask = rng.choice((PADDING, BOOL, ROWS, BIAS, HEADS, FLOAT))
    feature = rng.choice(({}, {}, CAUSAL, RIGHT, ALL, MOD, {"window_left": 30, "window_right": 20}))
    variant = {**mask, **feature, **rng.choice(({}, MIXED, {"layout": "packed_qkv"}))}
    shape = rng.choice((SHORT, ODD, LATE, LONG))
    dtype = rng.choice(("float16", "bfloat16"))
    planner = planned("attention-wgmma-masks", tmp_path, shape, variant, dtype)
    values = dict(planner.bound.sample(rng))
    assert not complaints(tmp_path, shape, variant, values, dtype=dtype, seeds=3), values
