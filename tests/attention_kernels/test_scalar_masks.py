"""1_scalar.cu with a mask on the CPU model of a warp; needs no GPU.

`make test` runs a case of each kind of mask, `make soak` more, and mistakes that must show.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from evotune.workers.executor import CaseJob

from .features_on_the_cpu import Values, outputs_of, planned, small_jobs, wrong_outputs
from .warps import emulation

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SPACE = "attention-masks"
SHAPE: Values = {
    **{"batch": 2, "heads": 4, "kv_heads": 2, "seq_len_q": 9, "seq_len_k": 75, "head_dim": 32},
}
VALUES: Values = {"BLOCK_N": 32, "WARPS": 4, "VEC_WIDTH": 8}
PADDING: Values = {"mask": "padding"}
BOOL: Values = {"mask": "bool", "mask_heads": 1}
BIAS: Values = {"mask": "bias", "mask_batch": 1}
FLOAT32: Values = {"mask": "bias", "mask_dtype": "float32"}
ALL: Values = {
    **{"alignment": "bottom_right", "causal": True, "window_left": 40, "softcap": 8.0},
    **{"alibi": True, "sinks": True, "lse": True},
}


def complaints(
    folder: Path,
    variant: Values,
    dtype: str = "float16",
    mistakes: Mapping[str, str] | None = None,
    count: int = 4,
) -> list[str]:
    """The outputs that are wrong, on the timed case and on small edge cases of the same binary."""
    jobs = small_jobs(planned(SPACE, folder, SHAPE, variant, dtype), VALUES, count)
    library = emulation.build(folder, jobs[0], mistakes)
    return wrong_outputs(
        jobs, lambda job, places: emulation.launch(library, job.plan, places, seed=0)
    )


def _later(*values: object) -> Any:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize("dtype", ["float16", _later("bfloat16")])
@pytest.mark.parametrize(
    "variant",
    [
        {**PADDING, "causal": True},
        {**FLOAT32, **ALL},
        *map(_later, (PADDING, BOOL, {**BOOL, **ALL}, {**PADDING, **ALL}, BIAS, {**BIAS, **ALL})),
    ],
)
def test_a_mask_is_right(variant: Values, dtype: str, tmp_path: Path) -> None:
    assert not complaints(tmp_path, variant, dtype)


@pytest.mark.parametrize("dtype", ["float16", _later("bfloat16")])
def test_keys_that_are_all_far_down_count_as_they_should(dtype: str, tmp_path: Path) -> None:
    """Keys of the lowest number count equally if a row has no others; -inf hides a key for good."""
    planner = planned(SPACE, tmp_path, {**SHAPE, "batch": 1}, FLOAT32, dtype)
    (job,) = small_jobs(planner, VALUES, 1)
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


@pytest.mark.soak
@pytest.mark.parametrize("variant", [PADDING, BOOL])
def test_blocks_that_are_hidden_from_all_rows_are_not_read(variant: Values, tmp_path: Path) -> None:
    """They hold NaN, which would reach the output through a weight of 0."""
    planner = planned(SPACE, tmp_path, {**SHAPE, "seq_len_k": 160}, variant, "float16")
    (job,) = small_jobs(planner, VALUES, 1)
    inputs = planner.problem.make_inputs(job.case, "normal", 0)
    mask = inputs["attn_mask"].fill_(1)
    mask[0, ..., :64] = mask[1, ..., 70:] = 0
    wanted = planner.problem.reference(job.case, inputs)
    for batch, keys in ((0, slice(0, 64)), (1, slice(96, None))):
        for name in "kv":
            inputs[name][batch, :, keys] = torch.nan
    library = emulation.build(tmp_path, job)
    found = outputs_of(job, inputs, lambda job, at: emulation.launch(library, job.plan, at, seed=0))
    torch.testing.assert_close(found["out"].double(), wanted["out"], rtol=2e-3, atol=2e-3)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong", "variant"),
    [
        ("in_batch(head / heads)", "in_batch(0)", PADDING),
        ("(head % heads, row, 0)", "(0, row, 0)", {"mask": "bool"}),
        ("(head % heads, row, 0)", "(head % heads, 0, 0)", BOOL),
        ("key >= row_keys || mask_row[key] == 0", "key >= row_keys", PADDING),
        ("(1u << kLaneKeys) - 1)) continue", "0)) continue", BOOL),
        ("|| HAS_MASK) && sum", ") && sum", BOOL),
        ("#define UNIT 1.0f", "#define UNIT LOG2E", BIAS),
        ("MASK_IS_BIAS ? -3.402823466e38f :", "", FLOAT32),
        ("MASK_IS_BIAS ? maximum +", "MASK_IS_BIAS ? LOG2E * maximum +", {**BIAS, "lse": True}),
    ],
)
def test_a_mistake_shows(right: str, wrong: str, variant: Values, tmp_path: Path) -> None:
    assert complaints(tmp_path, variant, mistakes={right: wrong}, count=8)
