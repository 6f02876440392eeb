"""Runs any behaviour of a red-team space on the CPU, on any shapes and inputs: CUDA kernels as
`session` compiles them, C++ kernels as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems import create_problem
from evotune.problems.problem import Tensors, TensorSpec
from evotune.runs.setup import load_setup
from evotune.trial import Configuration, Value
from evotune.workers.executor import TIMED, CaseJob

from .session import EmulatedFile, EmulatedKernel, EmulatedSession

_COMPILE_S = 300.0
_BEHIND = 1 << 15  # elements behind each tensor, all NaN


@dataclasses.dataclass(frozen=True)
class Bound:
    """One behaviour on one shape: `launch` writes the outputs, NaN before the first call.

    - memory: of each tensor. Behind an input there is room with NaN, or zeros of integers
    """

    kernel: Any
    launch: Callable[[], object]
    outputs: Tensors
    memory: Tensors

    @property
    def out(self) -> torch.Tensor:
        return self.outputs["out"]


class NativeSpace:
    """A red-team space of C++ kernels. Each behaviour is compiled when it is first bound."""

    device = "cpu"

    def __init__(self, folder: Path, space: Path) -> None:
        root = space.absolute().parents[1]
        self._folder = folder
        self._space = {**yaml.safe_load(space.read_text()), "root": str(root)}
        self._session = self._open()
        problem = self._space["problem"]
        self.head_dim = int(problem["shapes"][0].get("head_dim", 0))
        self.problem = create_problem(problem["name"], problem["dtype"], root)
        ((self._gene, spec),) = self._space["parameters"].items()
        self.behaviours = [str(value) for value in spec["choices"]]

    def _open(self) -> CpuSession:
        return CpuSession()

    def _load(self, job: CaseJob) -> Any:
        path = self._folder / f"{job.compile.key}.so"
        if not path.exists():
            built = CpuCompiler().compile(job.compile, path, _COMPILE_S)
            assert not isinstance(built, CompileFailure), built.log
        return self._session.load(path, job.plan)

    def job(
        self, behaviour: str, shape: Mapping[str, Value], causal: bool | None = None, **more: Value
    ) -> CaseJob:
        """The timed case of the behaviour on the shape. `causal` is None if the problem has no
        variants; `more` are other names of a variant."""
        problem = {**self._space["problem"], "shapes": [dict(shape)]}
        if causal is not None:
            problem["variants"] = [{"causal": causal, **more}]
        path = self._folder / "space.yaml"
        path.write_text(yaml.safe_dump({**self._space, "problem": problem}))
        setup = load_setup(path, self.device, compile_only=True)
        assert setup.planner is not None
        jobs = setup.planner.proposal(0, Configuration({self._gene: behaviour})).cases
        return next(job for job in jobs if job.role == TIMED)

    def bind(self, job: CaseJob, inputs: Tensors, kernel: Any = None) -> Bound:
        """Binds the job to copies of the inputs with NaN behind each. Uses `kernel` if it is given,
        else loads one."""
        kernel = kernel or self._load(job)
        memory: dict[str, torch.Tensor] = {}
        outputs: Tensors = {}
        for spec in self.problem.tensors(job.case):
            if spec.is_output:
                value = torch.empty(spec.span, dtype=getattr(torch, spec.dtype))
                value.view(torch.uint8).fill_(0xFF)
                memory[spec.name] = value.as_strided(spec.shape, spec.all_strides)
                outputs[spec.name] = memory[spec.name]
            else:
                memory[spec.name] = _fenced(inputs[spec.name], spec)
        for workspace in job.plan.workspaces:
            fill = 0 if workspace.init == "zero_once" else 0xFF
            memory[workspace.name] = torch.full((workspace.bytes,), fill, dtype=torch.uint8)
        pointers = {name: value.data_ptr() for name, value in memory.items()}
        launch = self._session.bind(kernel, job.plan, pointers)
        return Bound(kernel, launch, outputs, memory)

    def error(self, job: CaseJob, inputs: Tensors, output: str = "out") -> float:
        """The largest error of one launch; infinite if any error is not finite."""
        bound = self.bind(job, inputs)
        bound.launch()
        found = bound.outputs[output].double()
        reference = self.problem.reference(job.case, inputs)[output]
        error = (found - reference).abs()
        error[found == reference] = 0.0  # infinities too
        return float(error.max()) if bool(torch.isfinite(error).all()) else float("inf")


class EmulatedSpace(NativeSpace):
    """A red-team space of CUDA kernels, compiled once. A kernel that is loaded has device memory as
    a module has that was just loaded."""

    device = "h200"  # the nominal device; the code is compiled for the CPU

    def __init__(self, folder: Path, space: Path) -> None:
        self._file: EmulatedFile | None = None
        super().__init__(folder, space)

    def _open(self) -> EmulatedSession:
        return EmulatedSession()

    def _load(self, job: CaseJob) -> EmulatedKernel:
        if self._file is None:
            ((_, kernel_spec),) = self._space["kernels"].items()
            launches = kernel_spec["launches"]
            entries = [kernel_spec["entry"], *(each.get("entry", "") for each in launches)]
            self._file = EmulatedFile(
                self._folder, job.compile, tuple(dict.fromkeys(filter(None, entries)))
            )
        return self._file.load(job.compile)


def _fenced(value: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    behind = torch.nan if value.is_floating_point() else 0
    room = torch.full((spec.span + _BEHIND,), behind, dtype=value.dtype)
    return room.as_strided(spec.shape, spec.all_strides).copy_(value)
