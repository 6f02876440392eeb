"""The kernels with a mask, through the gate on the CPU, and what they do not read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems import create_problem
from evotune.problems.problem import Tensors
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Value
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.executor import WHEN_THERE_IS_TIME, CaseJob
from tests.patience import PATIENCE_S

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
DEFINES = ("has_mask", "mask_is_padding", "mask_is_bias", "mask_is_float32")
STRIDES = tuple(f"attn_mask_stride_{each}" for each in ("batch", "head", "row"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def planned(
    folder: Path,
    variant: Mapping[str, Value],
    default: Mapping[str, Value],
    space: str = "attention-masks-cpu",
    dtype: str = "float32",
) -> Planner:
    """The planner of a shipped space for `SHAPE`; one without masks gets them."""
    shipped = find_space(space)
    told: dict[str, Any] = yaml.safe_load(shipped.read_text())
    told["problem"] |= {"shapes": [SHAPE], "variants": [dict(variant)], "held_out": []}
    told["problem"]["dtype"] = dtype
    told["root"] = str(shipped.parents[1])
    told["default"] = {**told.get("default", {}), **default}
    (kernel,) = told["kernels"].values()
    if DEFINES[0] not in kernel["define"]:
        kernel["define"] += DEFINES
        kernel["arguments"] += ("attn_mask", *STRIDES)
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(told))
    planner = load_setup(path, "cpu").planner
    assert isinstance(planner, Planner)
    return planner


def subject(session: CpuSession, job: CaseJob, folder: Path) -> Subject:
    path = folder / f"{job.compile.key[:16]}.so"
    if not path.exists():
        built = CpuCompiler().compile(job.compile, path, PATIENCE_S)
        assert not isinstance(built, CompileFailure), built.log
    return Subject(job.case, job.plan, session.load(path, job.plan))


def judged(planner: Planner, folder: Path) -> Verdict:
    problem = create_problem(planner.problem.name, planner.problem.dtype)
    session, verdict = CpuSession(), Verdict()
    gate = Gate(session, problem, InputPool(problem), deterministic=True)
    for job in planner.proposal(0, planner.bound.default()).cases:
        if job.role not in WHEN_THERE_IS_TIME:
            gate.examine(subject(session, job, folder), problem.input_kinds, 0, verdict)
    return verdict


@pytest.mark.parametrize(
    ("variant", "lanes"),
    [
        pytest.param(*each, marks=() if each in SOON else pytest.mark.soak)
        for each in itertools.product(VARIANTS, LANES)
    ],
)
def test_the_kernel_of_simd_lanes_passes_the_gate(variant: str, lanes: str, tmp_path: Path) -> None:
    verdict = judged(planned(tmp_path, VARIANTS[variant], {**SMALL, **LANES[lanes]}), tmp_path)
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
    planner = planned(tmp_path, variant, {**SMALL, **LANES["keys"]}, dtype="bfloat16")
    verdict = judged(planner, tmp_path)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(
    "variant",
    [each if each == "bool" else pytest.param(each, marks=pytest.mark.soak) for each in VARIANTS],
)
def test_the_readable_kernel_passes_the_gate(variant: str, tmp_path: Path) -> None:
    space = "attention-features-cpu"
    verdict = judged(planned(tmp_path, VARIANTS[variant], {"BLOCK_N": 16}, space), tmp_path)
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
    session.bind(subject(session, job, folder).kernel, job.plan, pointers)()
    return out


@pytest.mark.parametrize("lanes", LANES)
def test_keys_that_padding_hides_from_a_whole_block_are_not_read(
    lanes: str, tmp_path: Path
) -> None:
    """They hold NaN, which would reach the output through a weight of 0."""
    planner = planned(tmp_path, VARIANTS["padding"], {**SMALL, **LANES[lanes]})
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
