"""A shipped CUDA kernel compiled for the CPU and run as its space launches it.

The files are compiled unchanged, except for the headers that hold only instructions, for the line
that declares shared memory, and for the one instruction of attention/parts/strides.cuh.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import yaml

from evotune.problems import create_problem
from evotune.problems.problem import Problem, Tensors, torch_dtype
from evotune.runs.launches import CasePlanner
from evotune.runs.setup import load_setup
from evotune.trial import Configuration, Value
from evotune.workers.executor import TIMED, CaseJob
from tests.attention_kernels.hopper.emulation import REPLACEMENT, addresses_of, compiled
from tests.attention_kernels.warps.emulation import INSTRUCTION, SUM

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_INSTRUCTIONS = (
    *("attention/parts/arithmetic.cuh", "attention/parts/async_copy.cuh"),
    *("attention/parts/blocks.cuh", "attention/wgmma/product.cuh", "attention/wgmma/tma.cuh"),
    *("linear/tma_2d.cuh", "rows/e4m3.cuh"),
)
_DECLARED = "extern __shared__ __align__({}) unsigned char shared_memory[];\n"
_FENCE = 4096  # elements before and behind each tensor, all NaN, or
_NO_NUMBER = -(1 << 30)  # in a tensor of integers


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_int * 3),
        ("threads", ctypes.c_int),
        ("shared_bytes", ctypes.c_int),
        ("seed", ctypes.c_uint),
        ("left_over", ctypes.c_int),
    )


class ModelComplaint(AssertionError):
    """A launch did something that the device forbids, wrote beside a tensor, or left a counter."""


class EmulatedKernel:
    """One configuration of a shipped space, compiled once, for shapes in one element type."""

    def __init__(
        self,
        folder: Path,
        space: str,
        values: Mapping[str, Value],
        dtype: str,
        *,
        mistakes: Mapping[str, str] | None = None,
        device: str = "h200",
        variant: Mapping[str, Value] | None = None,
        most_blocks: int | None = None,
    ) -> None:
        """`mistakes` maps texts of the kernel to wrong ones. `most_blocks` of a persistent kernel:
        the others' work is theirs, as on a device with few multiprocessors."""
        self._most_blocks = most_blocks
        self._device = device
        self._folder = folder
        path = ROOT / "search_spaces" / f"{space}.yaml"
        self._space = {**yaml.safe_load(path.read_text()), "root": str(ROOT)}
        self._space["problem"] |= {"dtype": dtype, "held_out": []}
        if variant is not None:
            self._space["problem"]["variants"] = [dict(variant)]
        self._values = values
        self.problem: Problem = create_problem(self._space["problem"]["name"], dtype, ROOT)
        self._mistakes = dict(mistakes or {})
        self._library: ctypes.CDLL | None = None

    def planner(self, shape: Mapping[str, Value]) -> CasePlanner:
        document = {**self._space, "problem": {**self._space["problem"], "shapes": [dict(shape)]}}
        path = self._folder / "space.yaml"
        path.write_text(yaml.safe_dump(document))
        planner = load_setup(path, self._device, compile_only=True).planner
        assert planner is not None
        return planner

    def job(self, shape: Mapping[str, Value]) -> CaseJob:
        planner = self.planner(shape)
        wanted = {**planner.bound.default(), **self._values}
        configuration = planner.bound.repair(wanted, random.Random(0))
        assert configuration is not None
        assert {name: configuration[name] for name in self._values} == self._values
        proposal = planner.proposal(0, Configuration(configuration))
        assert not proposal.rejection, proposal.rejection
        return next(job for job in proposal.cases if job.role == TIMED)

    def share_of_tolerance(
        self, shape: Mapping[str, Value], kind: str = "normal", seed: int = 0
    ) -> float:
        """The largest error as a share of the gate's tolerance; infinite for NaN, for an output
        that was not written, and for a byte written beside one."""
        job = self.job(shape)
        inputs = self.problem.make_inputs(job.case, kind, seed)
        outputs = self.run(job, inputs, seed)
        reference = self.problem.reference(job.case, inputs)
        tolerances = self.problem.tolerances(job.case, inputs, reference)
        worst = 0.0
        for name, expected in reference.items():
            share = (outputs[name].double() - expected).abs() / tolerances[name]
            worst = max(worst, float(share.nan_to_num(nan=torch.inf).max()))
        return worst

    def run(self, job: CaseJob, inputs: Tensors, seed: int) -> Tensors:
        library = self._library or self._build(job)
        self._library = library
        rooms, views = {}, {}
        for spec in self.problem.tensors(job.case):
            dtype = torch_dtype(spec.dtype)
            fill = torch.nan if dtype.is_floating_point else _NO_NUMBER
            room = torch.full((spec.span + 2 * _FENCE,), fill, dtype=dtype)
            room.share_memory_()
            view = room[_FENCE : _FENCE + spec.span].view(spec.shape)
            if not spec.is_output:
                view.copy_(inputs[spec.name])
            rooms[spec.name], views[spec.name] = room, view
        before = {name: room.clone() for name, room in rooms.items()}
        pointers = {name: view.data_ptr() for name, view in views.items()}
        scratch = []
        for workspace in job.plan.workspaces:
            fill = 0 if workspace.init == "zero_once" else 0xFF
            scratch.append(torch.full((workspace.bytes,), fill, dtype=torch.uint8).share_memory_())
            pointers[workspace.name] = scratch[-1].data_ptr()
        addresses, kept = addresses_of(job.plan, pointers)
        assert kept
        for launch in job.plan.launches:
            blocks = min(launch.grid[0], self._most_blocks or launch.grid[0])
            grid = (ctypes.c_int * 3)(*(blocks, *launch.grid[1:], 1, 1)[:3])
            given = _Launch(grid, launch.threads, launch.shared_bytes, seed, 0xFF)
            function = library[f"run_{launch.entry}"]
            _in_child(functools.partial(function, ctypes.byref(given), addresses))
        found = {
            spec.name: views[spec.name].clone()
            for spec in self.problem.tensors(job.case)
            if spec.is_output
        }
        for name in found:
            views[name].fill_(torch.nan)
        for name, room in rooms.items():
            same = torch.equal(room.view(torch.uint8), before[name].view(torch.uint8))
            if not same and name not in found:
                raise ModelComplaint(f"{name} was written")
            for fence in (slice(_FENCE), slice(-_FENCE, None)):
                found_there, put_there = (
                    each[fence].view(torch.uint8) for each in (room, before[name])
                )
                if not torch.equal(found_there, put_there):
                    raise ModelComplaint(f"something was written beside {name}")
        for workspace, left in zip(job.plan.workspaces, scratch, strict=True):
            if workspace.init == "zero_once" and bool(left.any()):
                raise ModelComplaint(f"{workspace.name} is not 0 after a launch")
        return found

    def _build(self, job: CaseJob) -> ctypes.CDLL:
        left = dict(self._mistakes)
        own = ROOT / job.compile.source
        files = [each for end in ("cu*", "h") for each in (ROOT / "kernels").rglob(f"*.{end}")]
        for source in sorted(files, key=lambda each: each != own):
            text = source.read_text().replace(INSTRUCTION, SUM)
            for alignment in (16, 128, 1024):
                text = text.replace(_DECLARED.format(alignment), "")
            for right in [right for right in left if right in text]:
                text = text.replace(right, left.pop(right), 1)
            if source.relative_to(ROOT / "kernels").as_posix() in _INSTRUCTIONS:
                text = REPLACEMENT
            to = self._folder / source.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(text)
        assert not left, f"nowhere in the kernels: {left}"
        entries = dict.fromkeys(launch.entry for launch in job.plan.launches)
        options = [f"-D{name}={value}" for name, value in job.compile.defines]
        options.append(f'-DKERNEL_FILE="{self._folder / job.compile.source}"')
        options.append(f"-DENTRIES={' '.join(f'RUN({entry})' for entry in entries)}")
        return ctypes.CDLL(str(compiled(self._folder, HERE / "device.hpp", options)))


def _in_child(launch: Callable[[], object]) -> None:
    """Launches in a child process, since the model ends its process at a mistake. Tensors lie in
    memory that both share."""
    child = os.fork()
    if child == 0:
        launch()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        raise ModelComplaint(f"the model found a mistake, status {status}")
