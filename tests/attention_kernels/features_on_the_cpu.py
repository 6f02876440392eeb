"""Cases of attention with features for kernels on the CPU or in a CPU model of a GPU."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
import yaml

from evotune.problems import create_problem
from evotune.problems.problem import Problem, Tensors, torch_dtype
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Value
from evotune.verify.accuracy import LIMITS, errors_against, expected
from evotune.workers.executor import CaseJob

Values: TypeAlias = Mapping[str, Value]
Launch: TypeAlias = Callable[[CaseJob, Mapping[str, int]], None]
"""Runs a job's launches on tensors at these addresses. It ends the process at a mistake."""
_MOST_FLOPS = 1e6
_MASK_DEFINES = ("has_mask", "mask_is_padding", "mask_is_bias", "mask_is_float32")
_MASK_ARGUMENTS = ("attn_mask", *(f"attn_mask_stride_{each}" for each in ("batch", "head", "row")))
_LEFT_OVER = (0xFF, 0x64)  # 16-bit numbers of these bytes: NaN, and 1124 in half precision


def planned(
    space: str,
    folder: Path,
    shape: Values,
    variant: Values,
    dtype: str,
    *,
    device: str = "h200",
    **default: Value,
) -> Planner:
    """The planner of a shipped space with this case alone. If the variant has a mask, a kernel
    without masks gets its names. `default` is what differs from the default configuration."""
    shipped = find_space(space)
    told = yaml.safe_load(shipped.read_text())
    told["problem"] |= {"shapes": [dict(shape)], "variants": [dict(variant)], "dtype": dtype}
    told["problem"]["held_out"] = []
    told["root"] = str(shipped.parents[1])
    told["default"] = {**told.get("default", {}), **default}
    for kernel in told["kernels"].values():
        if "mask" in variant and _MASK_DEFINES[0] not in kernel["define"]:
            kernel["define"] += _MASK_DEFINES
            kernel["arguments"] += _MASK_ARGUMENTS
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(told))
    planner = load_setup(path, device, compile_only=device != "cpu").planner
    assert isinstance(planner, Planner)
    return planner


def small_jobs(planner: Planner, values: Values, count: int) -> list[CaseJob]:
    """The timed case and small edge cases of the same binary. `values` are what differs from the
    default configuration."""
    wanted = {**planner.bound.default(), **values}
    configuration = planner.bound.repair(wanted, random.Random(0))
    assert configuration is not None
    assert {name: configuration[name] for name in values} == values
    jobs = planner.proposal(0, configuration).cases
    same = [job for job in jobs if job.compile.key == jobs[0].compile.key]
    small = [job for job in same[1:] if planner.problem.flops(job.case) < _MOST_FLOPS]
    return [same[0], *small[: count - 1]]


def wrong_outputs(
    jobs: list[CaseJob], launch: Launch, own_inputs: Tensors | None = None
) -> list[str]:
    """The outputs that are beyond the gate's limits, and the cases at which the model ended. The
    inputs are those of the gate, unless a test has some of its own."""
    found = []
    for number, job in enumerate(jobs):
        problem = create_problem("attention", str(job.case.symbols["dtype"]))
        inputs = own_inputs or problem.make_inputs(
            job.case, problem.input_kinds[number % 4], number
        )
        outputs = _in_child(launch, job, inputs, problem)
        if outputs is None:
            found.append(f"{job.case.label}: the model found a mistake")
            continue
        reference = problem.reference(job.case, inputs)
        limits = problem.tolerances(job.case, inputs, reference)
        for name, computed in outputs.items():
            wanted = expected(reference[name], limits[name], computed.dtype, may_be_infinite=True)
            if not LIMITS.hold(errors_against(computed, wanted)):
                found.append(f"{job.case.label}: {name}")
    return found


def other_no_numbers(job: CaseJob, problem: Problem, launch: Launch) -> list[str]:
    """The inputs and values after which other elements than the reference's are no numbers, or the
    remaining ones are beyond the gate's limits. Eight rows behind the one with the value in q are
    larger scores: a thread has both rows."""
    found = []
    for name, bad in itertools.product("qkv", (torch.nan, torch.inf, -torch.inf)):
        inputs = problem.make_inputs(job.case, "normal", 0)
        inputs["q"][:, :, inputs["q"].shape[2] // 2 + 8] *= 30
        inputs[name][tuple(size // 2 for size in inputs[name].shape)] = bad
        outputs = _in_child(launch, job, inputs, problem)
        assert outputs is not None
        reference = problem.reference(job.case, inputs)
        limits = problem.tolerances(job.case, inputs, reference)
        for output, computed in outputs.items():
            sound = reference[output].isfinite()
            off = (computed.double() - reference[output]).abs() > limits[output]
            if not torch.equal(computed.isfinite(), sound) or (off & sound).any():
                found.append(f"{name} with {bad}: {output}")
    return found


def depends_on_shared_memory(
    job: CaseJob,
    problem: Problem,
    launch: Callable[[CaseJob, Mapping[str, int], int], None],
) -> bool:
    """Whether an output's bits depend on the bytes that a block finds in shared memory: the last
    argument of `launch`."""
    inputs = problem.make_inputs(job.case, "normal", 0)

    def outputs_after(left_over: int) -> Tensors:
        outputs = _in_child(lambda job, at: launch(job, at, left_over), job, inputs, problem)
        assert outputs is not None
        return outputs

    first, second = map(outputs_after, _LEFT_OVER)
    return any(not torch.equal(first[name], second[name]) for name in first)


def outputs_of(job: CaseJob, inputs: Tensors, launch: Launch) -> Tensors:
    """The outputs on these inputs; the model must not end at a mistake."""
    problem = create_problem("attention", str(job.case.symbols["dtype"]))
    found = _in_child(launch, job, inputs, problem)
    assert found is not None
    return found


def _in_child(launch: Launch, job: CaseJob, inputs: Tensors, problem: Problem) -> Tensors | None:
    """The outputs of a job in a child process; None where that ended at a mistake."""
    memory = {}
    for spec in problem.tensors(job.case):
        dtype = torch_dtype(spec.dtype)
        between = torch.nan if dtype.is_floating_point else 1
        room = torch.full((spec.span,), between, dtype=dtype).share_memory_()
        memory[spec.name] = (
            room.as_strided(spec.shape, spec.strides) if spec.strides else room.view(spec.shape)
        )
        if not spec.is_output:
            memory[spec.name].copy_(inputs[spec.name])
    child = os.fork()
    if child == 0:
        launch(job, {name: value.data_ptr() for name, value in memory.items()})
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        return None
    return {spec.name: memory[spec.name] for spec in problem.tensors(job.case) if spec.is_output}
