"""A NaN or an infinity in q, k or v reaches the rows that it belongs to, as in PyTorch.

A kernel that loses a NaN makes a model that diverged look sound. The GPU rungs run on the CPU
models of their instructions, the CPU kernels as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems.problem import torch_dtype
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Configuration, Value
from evotune.workers.executor import TIMED, CaseJob
from tests.patience import PATIENCE_S
from tests.shipped_kernels.emulation import EmulatedKernel

from . import test_hopper_model as after
from . import test_paged as paged
from . import test_varlen as varlen
from . import test_varlen_wgmma as varlen_wgmma
from . import test_warp_model as before
from .hopper import emulation as hopper
from .warps import emulation as warps

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SHAPE: dict[str, Value] = {"batch": 1, "heads": 2, "seq_len_q": 35, "seq_len_k": 130}
SPLIT: dict[str, Value] = {**before.ONE_WARP, "SPLIT_KV": 3, "MERGE": "kernel"}
BY_MULTIPLY_ADDS: dict[str, Value] = {**after.SMALLEST, "EXP2_FMA_SHARE": 8}
NO_NUMBERS = [(name, bad) for name in "qkv" for bad in (np.nan, np.inf, -np.inf)]
Arrays = dict[str, hopper.Array]
Launch = Callable[[Arrays], hopper.Ran]


def before_hopper(folder: Path, space: str, values: Mapping[str, Value]) -> tuple[CaseJob, Launch]:
    job = before.job_of(folder, space, values, SHAPE, causal=False)
    library = warps.build(folder, job)
    return job, lambda inputs: warps.run(library, job, inputs, seed=0)


def on_hopper(folder: Path, kernel: str, values: Mapping[str, Value]) -> tuple[CaseJob, Launch]:
    (job,) = after.case_jobs(folder, values, [SHAPE], 132, kernel)
    library = hopper.build(folder, job.compile)
    return job, lambda inputs: hopper.run(library, job.plan, job.case, inputs, seed=0)


def differences(job: CaseJob, launch: Launch) -> Iterator[str]:
    """The tensors and values after which other elements than the reference's are no numbers."""
    numbers = hopper.inputs_of(job.case, seed=0)
    for name, bad in NO_NUMBERS:
        inputs = {each: values.copy() for each, values in numbers.items()}
        inputs[name][0, 1, 17, 5] = bad
        ran = launch(inputs)
        assert ran.out is not None, ran.complaint
        with np.errstate(invalid="ignore"):
            expected = hopper.reference(job.case, inputs)
        if not np.array_equal(np.isfinite(ran.out), np.isfinite(expected)):
            yield f"{name} with {bad}"


def _later(*values: object) -> ParameterSet:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("prepare", "kernel", "values"),
    [
        _later(before_hopper, "attention-scalar", {}),
        _later(before_hopper, "attention-wmma", {}),
        (before_hopper, "attention-mma", before.SMALL),
        _later(before_hopper, "attention-mma", SPLIT),
        _later(on_hopper, "tma", after.TMA),
        _later(on_hopper, "wgmma", after.SMALLEST),
        (on_hopper, "wgmma", BY_MULTIPLY_ADDS),
        _later(on_hopper, "wgmma", {**BY_MULTIPLY_ADDS, "SPLIT_KV": 2}),
        _later(on_hopper, "wgmma", {**after.TWO, "EXP2_FMA_SHARE": 8, "RESCALE_LOG2": 8}),
    ],
)
def test_a_gpu_rung_loses_none(
    prepare: Callable[..., tuple[CaseJob, Launch]],
    kernel: str,
    values: Mapping[str, Value],
    tmp_path: Path,
) -> None:
    assert not list(differences(*prepare(tmp_path, kernel, values)))


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("space", "values", "shape"),
    [
        _later("attention_varlen", varlen.LEVELS, varlen.SHORT),
        ("attention_varlen_wgmma", varlen_wgmma.ONE, {**varlen.SHORT, "head_dim": 64}),
        ("attention_paged", paged.SMALL, {**paged.DECODE, "page_size": 16}),
    ],
)
def test_a_gpu_kernel_for_ragged_batches_loses_no_nan(
    space: str, values: Mapping[str, Value], shape: Mapping[str, Value], tmp_path: Path
) -> None:
    kernel = EmulatedKernel(tmp_path, space, values, "float16", variant={"causal": True})
    job = kernel.job(shape)
    inputs = kernel.problem.make_inputs(job.case, "normal", 0)
    inputs["q"][tuple(size // 2 for size in inputs["q"].shape)] = torch.nan
    expected = kernel.problem.reference(job.case, inputs)["out"]
    assert expected.isnan().any()
    assert torch.equal(kernel.run(job, inputs, 0)["out"].isnan(), expected.isnan())


@pytest.mark.parametrize(
    ("space", "changed"),
    [
        ("attention-cpu", "qk"),
        _later("attention-scalar-cpu", "qk"),
        _later("attention-features-simd-cpu", ["q", "k", "sinks"]),
        _later("attention-varlen-cpu", "qk"),
        ("attention-paged-cpu", "q"),
    ],
)
def test_a_cpu_kernel_loses_no_nan(space: str, changed: Sequence[str], tmp_path: Path) -> None:
    """V is left out: PyTorch multiplies the value of a hidden key by 0, a kernel skips it."""
    setup = load_setup(find_space(space), "cpu")
    assert setup.planner is not None
    default = Configuration(setup.planner.bound.default())
    proposal = setup.planner.proposal(0, default)
    job = next(each for each in proposal.cases if each.role == TIMED)
    library = tmp_path / "kernel.so"
    assert not isinstance(CpuCompiler().compile(job.compile, library, PATIENCE_S), CompileFailure)
    session = CpuSession()
    problem = setup.planner.problem
    for name in changed:
        tensors = problem.make_inputs(job.case, "normal", 0)
        tensors[name][tuple(size // 2 for size in tensors[name].shape)] = torch.nan
        expected = problem.reference(job.case, tensors)["out"]
        outputs = {
            spec.name: torch.zeros(spec.shape, dtype=torch_dtype(spec.dtype))
            for spec in problem.tensors(job.case)
            if spec.is_output
        }
        rooms = {
            workspace.name: torch.zeros(workspace.bytes, dtype=torch.uint8)
            for workspace in job.plan.workspaces
        }
        places = {each: t.data_ptr() for each, t in (tensors | outputs | rooms).items()}
        session.bind(session.load(library, job.plan), job.plan, places)()
        assert expected.isnan().any()
        assert torch.equal(outputs["out"].isnan(), expected.isnan()), name
