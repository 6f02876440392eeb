"""The kernels with a mask, through the gate on the CPU, and what they do not read."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems import create_problem
from evotune.problems.problem import Tensors
from evotune.runs.planning import Planner
from evotune.trial import Value
from tests.cpu_kernels import judged, loaded
from tests.sweeps import swept

from .features_on_the_cpu import Values, planned

SHAPE: dict[str, Value] = {"batch": 3, "heads": 4, "kv_heads": 2, "seq_len": 75, "head_dim": 32}
VARIANTS: dict[str, dict[str, Value]] = {
    "padding": {"mask": "padding"},
    "causal padding": {"mask": "padding", "causal": True},
    "bool": {"mask": "bool"},
    "bool of rows": {"mask": "bool", "mask_batch": 1, "mask_heads": 1, "causal": True},
    "bool, window": {"mask": "bool", "window_left": 30, "lse": True},
    "bias": {"mask": "bias"},
    "bias of heads": {"mask": "bias", "mask_batch": 1},
    "bias, all features": {
        **{"mask": "bias", "causal": True, "alignment": "bottom_right", "window_left": 40},
        **{"softcap": 5.0, "alibi": True, "sinks": True, "lse": True},
    },
}
LANES: dict[str, dict[str, Value]] = {
    "rows": {"K_LAYOUT": "rows", "V_LAYOUT": "rows", "LOOP_ORDER": "kv_outer"},
    "keys": {"K_LAYOUT": "panels", "V_LAYOUT": "panels", "PACK": "head", "LOOP_ORDER": "q_outer"},
    "packed by blocks": {"K_LAYOUT": "panels", "V_LAYOUT": "rows", "PACK": "block"},
}
SMALL: dict[str, Value] = {"BLOCK_M": 32, "STEP_M": 16, "BLOCK_N": 32}
SOON = {("padding", "keys"), ("bias, all features", "keys"), ("bool", "rows")}
pytestmark = pytest.mark.usefixtures("one_thread")


def masked(
    folder: Path,
    variant: Values,
    default: Values,
    space: str = "attention-masks-cpu",
    dtype: str = "float32",
) -> Planner:
    return planned(space, folder, SHAPE, variant, dtype, device="cpu", **default)


@pytest.mark.parametrize(
    ("variant", "lanes"),
    swept(itertools.product(VARIANTS, LANES), lambda each: each in SOON),
)
def test_the_kernel_of_simd_lanes_passes_the_gate(variant: str, lanes: str, tmp_path: Path) -> None:
    verdict = judged(masked(tmp_path, VARIANTS[variant], {**SMALL, **LANES[lanes]}), tmp_path)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(
    "variant",
    [
        {"mask": "bias", "mask_dtype": "float32"},
        pytest.param({"mask": "bias"}, marks=pytest.mark.soak),
        pytest.param({"mask": "padding"}, marks=pytest.mark.soak),
    ],
)
def test_bfloat16_takes_biases_of_both_types(variant: dict[str, Value], tmp_path: Path) -> None:
    planner = masked(tmp_path, variant, {**SMALL, **LANES["keys"]}, dtype="bfloat16")
    verdict = judged(planner, tmp_path)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(
    "variant",
    swept(VARIANTS, lambda variant: variant == "bool"),
)
def test_the_readable_kernel_passes_the_gate(variant: str, tmp_path: Path) -> None:
    space = "attention-features-cpu"
    verdict = judged(masked(tmp_path, VARIANTS[variant], {"BLOCK_N": 16}, space), tmp_path)
    assert verdict.passed, verdict.reason


def run_once(planner: Planner, folder: Path, inputs: Tensors) -> torch.Tensor:
    """The output of the timed case on contiguous inputs."""
    job = planner.proposal(0, planner.bound.default()).cases[0]
    session = CpuSession()
    out = torch.full(inputs["q"].shape, torch.nan)
    pointers = {name: value.data_ptr() for name, value in {**inputs, "out": out}.items()}
    rooms = [torch.zeros(each.bytes + 64, dtype=torch.uint8) for each in job.plan.workspaces]
    for each, room in zip(job.plan.workspaces, rooms, strict=True):
        pointers[each.name] = room.data_ptr() + -room.data_ptr() % 64
    session.bind(loaded(session, job, folder).kernel, job.plan, pointers)()
    return out


@pytest.mark.parametrize("lanes", LANES)
def test_keys_that_padding_hides_from_a_whole_block_are_not_read(
    lanes: str, tmp_path: Path
) -> None:
    """They hold NaN, which would reach the output through a weight of 0."""
    planner = masked(tmp_path, VARIANTS["padding"], {**SMALL, **LANES[lanes]})
    problem = create_problem("attention", "float32")
    case = planner.proposal(0, planner.bound.default()).cases[0].case
    inputs = problem.make_inputs(case, "normal", 0)
    mask = torch.ones_like(inputs["attn_mask"])
    mask[0, ..., 32:64] = 0  # one block of three
    mask[1, ..., 40:] = 0  # a part of a block, and the last one
    inputs["attn_mask"] = mask
    wanted = problem.reference(case, inputs)["out"]
    for name in "kv":
        inputs[name][0, :, 32:64] = torch.nan
        inputs[name][1, :, 64:] = torch.nan
    found = run_once(planner, tmp_path, inputs)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
