"""The GPU kernels for rows on a CPU model of CUDA, and compiled where NVRTC is there."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Value
from tests.patience import PATIENCE_S
from tests.sweeps import swept

from .emulation import EmulatedKernel

needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

NORMS = ["softmax", "rms_norm", "add_rms_norm", "add_rms_norm_fp8"]
SOON = {("softmax", "a100"), ("add_rms_norm_fp8", "l4"), ("cross_entropy", "h200")}
SOON |= {("rms_norm", "h200")}
TEAM: dict[str, Value] = {"WARPS_PER_ROW": 2, "ROWS": 2, "VECTOR_BYTES": 16, "KEPT": 1}
ALONE: dict[str, Value] = {"WARPS_PER_ROW": 1, "ROWS": 2, "VECTOR_BYTES": 8, "KEPT": 0}
SHAPES = [(3, 1), (2, 515), (1, 1536), (5, 40)]  # rows, columns: odd ones, and whole vectors


@needs_gpp
@pytest.mark.parametrize(
    "space", swept(NORMS, lambda space: space in ("softmax", "add_rms_norm_fp8"))
)
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (TEAM, "float16"),
        pytest.param(ALONE, "bfloat16", marks=pytest.mark.soak),
        pytest.param({**TEAM, "LOAD": "past_l1"}, "float32", marks=pytest.mark.soak),
        pytest.param(
            {**ALONE, "KEPT": 4, "STORE": "streaming", "LOAD": "streaming"},
            "float16",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_rows_come_out_right(
    space: str, values: Mapping[str, Value], dtype: str, tmp_path: Path
) -> None:
    kernel = EmulatedKernel(tmp_path, space, values, dtype)
    kinds = kernel.problem.input_kinds
    for number, (rows, columns) in enumerate(SHAPES):
        shape = {"rows": rows, "columns": columns}
        assert kernel.share_of_tolerance(shape, kinds[number % len(kinds)], number) <= 1, shape


EDGES = (1016, 1024, 1032, 127, 128, 129)
"""Columns around 1024 and 128, with which each of 64 threads has two vectors, or two numbers."""


@needs_gpp
def test_rms_norm_keeps_vectors_that_all_threads_have(tmp_path: Path) -> None:
    kernel = EmulatedKernel(tmp_path, "rms_norm", {**TEAM, "KEPT": 2}, "float16")
    for number, columns in enumerate(EDGES):
        shape = {"rows": 3, "columns": columns}
        assert kernel.share_of_tolerance(shape, "ramp", number) <= 1, columns


@pytest.mark.soak
@needs_gpp
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("columns >= KEPT *", "columns > KEPT / 2 *"),
        ("int at = first + KEEP * kStride;", "int at = first + (KEEP + 1) * kStride;"),
        ("if (columns % kVector == 0)", "if (true)"),
    ],
)
def test_the_model_sees_a_mistake_in_rms_norm(right: str, wrong: str, tmp_path: Path) -> None:
    own = {**TEAM, "KEPT": 2}
    kernel = EmulatedKernel(tmp_path, "rms_norm", own, "float16", mistakes={right: wrong})
    try:
        worst = max(
            kernel.share_of_tolerance({"rows": 3, "columns": columns}, "ramp", 1)
            for columns in (*EDGES, 3000)
        )
    except AssertionError:
        return
    assert worst > 1


@needs_gpp
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ({**TEAM, "KEPT": None, "UNROLL": 3}, "bfloat16"),
        pytest.param({**ALONE, "KEPT": None, "UNROLL": 1}, "float16", marks=pytest.mark.soak),
    ],
)
def test_losses_come_out_right(
    values: Mapping[str, Value | None], dtype: str, tmp_path: Path
) -> None:
    own = {name: value for name, value in values.items() if value is not None}
    kernel = EmulatedKernel(tmp_path, "cross_entropy", own, dtype)
    for number, (rows, classes) in enumerate([(3, 1), (2, 999), (1, 3200), (5, 80000)]):
        shape = {"rows": rows, "classes": classes}
        kind = kernel.problem.input_kinds[number % 4]
        assert kernel.share_of_tolerance(shape, kind, number) <= 1, shape


@needs_gpp
@pytest.mark.parametrize("values", [TEAM, pytest.param(ALONE, marks=pytest.mark.soak)])
def test_softmax_treats_infinities_as_pytorch_does(
    values: Mapping[str, Value], tmp_path: Path
) -> None:
    kernel = EmulatedKernel(tmp_path, "softmax", values, "float32")
    for columns in (3, 515, 1536):
        job = kernel.job({"rows": 5, "columns": columns})
        x = kernel.problem.make_inputs(job.case, "normal", columns)["x"]
        x[0] = -torch.inf
        x[1, : columns // 2] = -torch.inf
        x[2, 1:] = -torch.inf
        x[3, columns // 2] = torch.inf
        x[4, columns // 2] = torch.nan
        found = kernel.run(job, {"x": x}, 0)["out"]
        torch.testing.assert_close(found, x.softmax(-1), equal_nan=True)


@needs_gpp
@pytest.mark.parametrize("space", swept(NORMS[1:], "add_rms_norm_fp8".__eq__))
@pytest.mark.parametrize("values", [TEAM, pytest.param(ALONE, marks=pytest.mark.soak)])
def test_norms_lose_no_nan(space: str, values: Mapping[str, Value], tmp_path: Path) -> None:
    kernel = EmulatedKernel(tmp_path, space, values, "float16")
    job = kernel.job({"rows": 3, "columns": 520})
    numbers = kernel.problem.make_inputs(job.case, "normal", 0)
    for name, bad in itertools.product(numbers, (torch.nan, torch.inf)):
        inputs = {each: values.clone() for each, values in numbers.items()}
        inputs[name].view(-1)[inputs[name].numel() // 2] = bad
        outputs = kernel.run(job, inputs, 0)
        for output, expected in kernel.problem.reference(job.case, inputs).items():
            found = outputs[output].float()
            assert torch.equal(found.isnan(), expected.isnan()), (name, bad, output)


@needs_gpp
def test_the_loss_of_a_row_to_ignore_is_0(tmp_path: Path) -> None:
    own: dict[str, Value] = {"WARPS_PER_ROW": 2, "ROWS": 2, "VECTOR_BYTES": 16, "UNROLL": 3}
    kernel = EmulatedKernel(tmp_path, "cross_entropy", own, "float32")
    job = kernel.job({"rows": 4, "classes": 999})
    inputs = kernel.problem.make_inputs(job.case, "normal", 0)
    inputs["target"][1:3] = -100
    inputs["logits"][3, :500] = -torch.inf
    inputs["target"][3] = 700
    found = kernel.run(job, inputs, 0)["loss"]
    expected = functional.cross_entropy(inputs["logits"], inputs["target"], reduction="none")
    torch.testing.assert_close(found, expected)


@needs_gpp
@pytest.mark.parametrize(
    ("space", "kind", "right", "wrong"),
    [
        ("softmax", "ramp", "sum *= __expf(top_of_rest - higher);", ""),
        (
            "add_rms_norm_fp8",
            "large",
            "total[i] * total[i];",
            "fminf(total[i] * total[i], 144.0f);",
        ),
        *(
            pytest.param(mistake[0], "ramp", *mistake[1:], marks=pytest.mark.soak)
            for mistake in (
                ("softmax", "if (first + j * kStride < columns) store", "store"),
                ("softmax", "if (columns % kVector == 0)", "if (true)"),
                ("add_rms_norm_fp8", "fabsf(product[i])", "product[i]"),
                ("add_rms_norm_fp8", "total[i] += residual[i];", "total[i] -= residual[i];"),
                ("add_rms_norm_fp8", "first + KEPT * kStride;", "first + (KEPT + 1) * kStride;"),
            )
        ),
    ],
)
def test_the_model_sees_a_mistake(
    space: str, kind: str, right: str, wrong: str, tmp_path: Path
) -> None:
    kernel = EmulatedKernel(tmp_path, space, TEAM, "float16", mistakes={right: wrong})
    try:
        worst = max(
            kernel.share_of_tolerance({"rows": 2, "columns": columns}, kind, 1)
            for columns in (40, 515, 3000)
        )
    except AssertionError:
        return
    assert worst > 1


@pytest.mark.parametrize(
    ("space", "device"),
    swept(
        itertools.product([*NORMS, "cross_entropy"], ["a100", "l4", "h200"]),
        lambda each: each in SOON,
    ),
)
def test_configurations_compile(space: str, device: str, tmp_path: Path) -> None:
    """The default without spills, and one that is drawn."""
    pytest.importorskip("cupy")
    if (space, device) == ("add_rms_norm_fp8", "a100"):
        pytest.skip("FP8 conversions begin with sm_89")
    planner = load_setup(find_space(space.replace("_", "-")), device, compile_only=True).planner
    assert planner is not None
    drawn = planner.bound.sample(random.Random(device))
    for number, configuration in enumerate((planner.bound.default(), drawn)):
        (job, *_) = planner.compile_jobs(configuration)
        built = NvrtcCompiler().compile(job, tmp_path / f"{number}.cubin", timeout_s=PATIENCE_S)
        assert not isinstance(built, CompileFailure), built.reason
        assert number > 0 or built["spill_store_bytes"] == 0
