"""`CallableKernel`: a configuration of a run as a function of torch tensors, in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evotune.backends import registry
from evotune.backends.base.backend import KernelCall
from evotune.backends.base.launch import Binary, CompileJob, LaunchPlan
from evotune.errors import EvotuneError
from evotune.problems.problem import (
    Case,
    Tensors,
    contiguous_strides,
    element_type,
    torch_dtype,
    with_strides,
)
from evotune.runs.compiling import build_jobs
from evotune.runs.launches import Rejected
from evotune.runs.reopening import ReopenedRun
from evotune.trial import Configuration, Value
from evotune.workers.executor import TIMED, CaseJob

if TYPE_CHECKING:
    from evotune.runs.folder import RunFolder

_ALIGNMENT = 16
"""In bytes. The tensors that a kernel was checked on lie at such multiples, so it may load as many
bytes at once."""


class CallableKernel:
    """`kernel(q, k, v)` returns the output, or a dict of outputs by name if there are several.

    Inputs are torch tensors, in the problem's order or by name. Their shapes determine the case.
    They must be contiguous, but a kernel that takes strides accepts any views whose last dimension
    is contiguous. If it also takes the strides of the output, the output has the memory layout of
    the first input of the same shape. Otherwise the output is contiguous. Other keywords set what
    shapes do not imply: a variant (`causal=True`), a scale or another constant, a size that no
    input has. Sizes and variants that all cases of the run share may be left out. The first call
    for a case may compile the kernel for it; the build cache keeps the result.

    A tensor that the kernel updates in place is the caller's own, and is returned as well.

    The kernel was checked only on its domain, which the run's report names. It has no gradient.
    Call it from one thread at a time. On a GPU it runs on the current stream.

    Raises ValueError, one line, for tensors of a wrong number, dtype, shape, layout or device, and
    for a case that the kernel does not support.
    """

    def __init__(self, run: RunFolder, configuration: Configuration) -> None:
        """Raises UsageError for a run on a recorded space, which has no kernel."""
        self._reopened = ReopenedRun.load(run)
        self._configuration = configuration
        self._jobs: dict[str, CaseJob] = {}
        self._launches: dict[str, tuple[Binary, KernelCall]] = {}
        profile = self._reopened.setup.profile
        self._caller = registry.named(profile.backend).caller(profile)
        self.__name__ = self._reopened.setup.name.replace("-", "_")

    @property
    def configuration(self) -> Configuration:
        return self._configuration

    def __repr__(self) -> str:
        names = ", ".join(spec.name for spec in self._specs if spec.is_input)
        return f"<kernel {self.__name__}({names})>"

    def __call__(self, *tensors: torch.Tensor, **named: Any) -> torch.Tensor | Tensors:
        inputs, options = self._inputs(tensors, named)
        case = self._case({name: tuple(t.shape) for name, t in inputs.items()}, options)
        self._check(inputs, case)
        device = next(iter(inputs.values())).device
        with self._caller.current(device):
            outputs = self._outputs(inputs, case)
            job = self._job(self._laid_out({**inputs, **outputs}, case))
            binary, launch = self._launch(job.compile)
            plan = job.plan.completed(binary.resources)
            buffers = {**inputs, **outputs, **_workspaces(plan, device)}
            outputs = launch(plan, buffers) or outputs
        return outputs if len(outputs) > 1 else next(iter(outputs.values()))

    @functools.cached_property
    def _timed(self) -> list[Case]:
        return self._reopened.setup.cases[TIMED]

    @functools.cached_property
    def _problem(self) -> Any:
        return self._reopened.planner.problem

    @functools.cached_property
    def _specs(self) -> Any:
        """The tensors of the first case; their names and roles are the same in every case."""
        return self._problem.tensors(self._timed[0])

    def _inputs(
        self, tensors: tuple[torch.Tensor, ...], named: Mapping[str, Any]
    ) -> tuple[Tensors, dict[str, Value]]:
        """The input tensors by name, and the other keywords."""
        names = [spec.name for spec in self._specs if spec.is_input]
        call = f"{self.__name__}({', '.join(names)})"
        if len(tensors) > len(names):
            raise ValueError(f"{call} takes {len(names)} tensors, got {len(tensors)}")
        given = dict(zip(names, tensors, strict=False))
        for name in names:
            if name in named:
                if name in given:
                    raise ValueError(f"{call} got {name} twice")
                given[name] = named[name]
        missing = [name for name in names if name not in given]
        if missing:
            raise ValueError(f"{call} lacks {', '.join(missing)}")
        for name, tensor in given.items():
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{name}: expected a tensor, got a {type(tensor).__name__}")
        inputs = {name: given[name] for name in names}
        return inputs, {name: value for name, value in named.items() if name not in names}

    def _case(self, shapes: Mapping[str, tuple[int, ...]], options: Mapping[str, Value]) -> Case:
        case: Case = self._problem.called_case(shapes, options, self._timed)
        return case

    def _check(self, inputs: Tensors, case: Case) -> None:
        wanted = {spec.name: spec for spec in self._problem.tensors(case)}
        first = next(iter(inputs))
        for name, tensor in inputs.items():
            spec = wanted[name]
            dtype = element_type(tensor.dtype)
            if dtype != spec.dtype:
                raise ValueError(f"{name} is {dtype}, the kernel takes {spec.dtype}")
            if tuple(tensor.shape) != spec.shape:
                raise ValueError(
                    f"{name} has the shape {tuple(tensor.shape)}, expected {spec.shape} "
                    f"for {case.label}"
                )
            if tensor.device != inputs[first].device:
                raise ValueError(f"{name} is on {tensor.device}, {first} on {inputs[first].device}")
            if why := _unsuited(tensor, takes_strides=name in self._strided):
                raise ValueError(f"{name} {why}: call it with {name}.contiguous()")
            if tensor.data_ptr() % _ALIGNMENT:
                raise ValueError(
                    f"{name} does not begin at a multiple of {_ALIGNMENT} bytes: "
                    f"call it with {name}.clone()"
                )
            if tensor.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{name} requires grad, and a kernel has no gradient: "
                    f"call it with {name}.detach() or under torch.no_grad()"
                )
        device = inputs[first].device
        refusal = self._caller.refusal(device)
        if refusal:
            raise ValueError(f"the tensors are on {device}: {refusal}")

    @functools.cached_property
    def _strided(self) -> frozenset[str]:
        """The tensors whose strides the kernel takes as arguments."""
        return self._reopened.planner.strided_tensors(self._configuration, self._timed[0])

    def _laid_out(self, tensors: Tensors, case: Case) -> Case:
        """The case with the tensors' strides."""
        specs = self._problem.tensors(case)
        strides = {
            spec.name: contiguous_strides(spec.shape)
            if tensors[spec.name].is_contiguous()
            else tensors[spec.name].stride()
            for spec in specs
            if spec.stride_symbols
        }
        return with_strides(case, specs, strides)

    def _outputs(self, inputs: Tensors, case: Case) -> Tensors:
        first = next(iter(inputs.values()))
        found = {}
        for spec in self._problem.tensors(case):
            if spec.is_updated:
                found[spec.name] = inputs[spec.name]
            elif spec.is_output:
                dtype, alike = torch_dtype(spec.dtype), None
                if spec.name in self._strided:
                    alike = next((t for t in inputs.values() if t.shape == spec.shape), None)
                found[spec.name] = (
                    first.new_empty(spec.shape, dtype=dtype)
                    if alike is None
                    else torch.empty_like(alike, dtype=dtype)
                )
        return found

    def _job(self, case: Case) -> CaseJob:
        key = f"{case.label} {sorted(case.symbols.items())}" if self._strided else case.label
        if key not in self._jobs:
            try:
                job = self._reopened.planner.case_job(self._configuration, case)
            except (Rejected, EvotuneError) as error:
                raise ValueError(f"the kernel cannot compute {case.label}: {error}") from error
            self._jobs[key] = job
        return self._jobs[key]

    def _launch(self, job: CompileJob) -> tuple[Binary, KernelCall]:
        if job.key not in self._launches:
            binary = _compiled(job, self._reopened)
            self._launches[job.key] = binary, self._caller.load(Path(binary.path))
        return self._launches[job.key]


def _unsuited(tensor: torch.Tensor, *, takes_strides: bool) -> str:
    """Why the kernel cannot take the tensor as it lies in memory, "" when it can."""
    if tensor.is_contiguous():
        return ""
    if not takes_strides:
        return "is not contiguous"
    *outer, inner = tensor.stride()
    if inner != 1 and tensor.shape[-1] > 1:
        return "is not contiguous in its last dimension"
    steps = (s for s, size in zip(outer, tensor.shape, strict=False) if size > 1)
    if any(stride * tensor.element_size() % _ALIGNMENT for stride in steps):
        return f"has a stride that is no multiple of {_ALIGNMENT} bytes"
    return ""


def _compiled(job: CompileJob, reopened: ReopenedRun) -> Binary:
    """The job's binary from the build cache, or compiled now. Raises ValueError if it does not
    compile."""
    timeout_s = reopened.setup.document.timeouts.compile_s
    result = build_jobs([job], timeout_s)[job.key]
    if not isinstance(result, Binary):
        raise ValueError(f"the kernel does not compile: {result.reason}")
    return result


def _workspaces(plan: LaunchPlan, device: torch.device) -> Tensors:
    """Fresh workspaces for each call, so that calls on several streams do not share them."""
    return {
        workspace.name: (torch.zeros if workspace.init == "zero_once" else torch.empty)(
            workspace.bytes, dtype=torch.uint8, device=device
        )
        for workspace in plan.workspaces
    }
