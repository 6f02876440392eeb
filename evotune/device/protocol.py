"""The two seams of a backend: a Compiler (no device needed) and a Session (owns the device)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from evotune.device.launch import CompileFailure, CompileJob, LaunchPlan
from evotune.trial import Json


class Compiler(Protocol):
    """Turns a job into machine code in a CPU process; never touches a device."""

    def version(self) -> str:
        """Compiler and flags; part of the build cache's key. EnvironmentProblem if missing."""

    def compile(
        self, job: CompileJob, output: Path, timeout_s: float
    ) -> Mapping[str, Json] | CompileFailure:
        """Writes machine code to `output`; returns its resources (registers, spills, ...)."""


class Session(Protocol):
    """An open device in a worker process. Tensors are torch tensors on `torch_device`."""

    torch_device: str

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        """A loaded kernel. LaunchFailure when the machine code cannot be loaded."""

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        """A function that launches the kernel once on these buffers, by tensor/workspace name."""

    def synchronize(self) -> None: ...

    def time_us(self, call: Callable[[], object], calls: int) -> float:
        """Mean device time of one of `calls` calls in a row, in microseconds."""

    def left_running(self) -> str:
        """What a candidate left at work after its launch returned, in words; "" when nothing."""

    def state(self) -> Mapping[str, Json]:
        """Clocks, power, temperature and throttling as far as the device tells."""


class LaunchFailure(RuntimeError):
    """A kernel that could not be loaded or launched; the trial ends as launch_error."""
