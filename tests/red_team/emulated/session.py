"""The red team's CUDA kernels compiled for the CPU, and a session that runs them there.

This shows that a right kernel is right, and that a cheat does what its name says. It shows nothing
about the hardware, such as times, caches and the arrival of copies.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evotune.backends.base.launch import CompileJob, Launch, LaunchPlan
from evotune.backends.base.session import c_value
from evotune.backends.cpu.cpu_session import CpuSession

HERE = Path(__file__).parent
# _FORTIFY_SOURCE would take a jump from one fiber's stack to another's for a mistake.
_COMPILER = (
    *("g++", "-std=c++20", "-O2", "-march=native", "-w", "-fPIC", "-shared"),
    "-U_FORTIFY_SOURCE",
)


class EmulatedKernel:
    """One behaviour or method, as a library of its own with device memory of its own."""

    def __init__(self, path: Path, chosen: int) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.choose(chosen)
        self._library.count_exponentials.restype = ctypes.c_ulonglong
        self.launches = 0

    def __call__(self) -> None:
        raise TypeError("an emulated kernel is launched through Session.bind")

    @property
    def exponentials(self) -> int:
        """The exponentials that the kernel has computed so far: a measure of its work."""
        return int(self._library.count_exponentials())

    def let_pass(self, time_us: float) -> None:
        """Advances the clock that the kernel reads."""
        self._library.let_pass(ctypes.c_ulonglong(int(1000 * time_us)))

    def run(self, launch: Launch, values: Any) -> None:
        """Launches the kernel, each time in another order of blocks and threads."""
        self.launches += 1
        (grid,) = launch.grid
        self._library[f"run_{launch.entry}"](grid, launch.threads, self.launches, values)


class EmulatedSession(CpuSession):
    """Launches are synchronous: each has ended, with all its effects, when it returns."""

    in_order = True

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        assert isinstance(kernel, EmulatedKernel)
        kinds = ("tensor", "workspace")
        values = [
            ctypes.c_void_p(pointers[each.name]) if each.type in kinds else c_value(each)
            for each in plan.arguments
        ]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))

        def run() -> None:
            assert values  # keeps the values alive that the addresses point to
            for launch in plan.launches:
                kernel.run(launch, addresses)

        return run


class EmulatedFile:
    """A kernel file, compiled once for all behaviours (or methods) that it has."""

    def __init__(self, folder: Path, job: CompileJob, entries: tuple[str, ...]) -> None:
        """`job` may be the job of any behaviour in the file."""
        self._folder = folder
        self._path = folder / f"{Path(job.source).stem}-{job.key[:8]}.so"
        self._loaded = 0
        source = Path(job.root) / job.source
        defines = {name: value for name, value in job.defines if name not in _CHOSEN}
        command = [*_COMPILER, f"-I{HERE}", f'-DKERNEL_FILE="{source}"']
        command += [f"-D{name}={value}" for name, value in defines.items()]
        command += [f"-DENTRIES={' '.join(f'RUN({entry})' for entry in entries)}"]
        command += [str(HERE / "harness.cpp"), "-o", str(self._path)]
        subprocess.run(command, check=True)

    def load(self, job: CompileJob) -> EmulatedKernel:
        """The job's kernel, with device memory as after a module was loaded."""
        self._loaded += 1
        own = self._folder / f"{self._path.stem}-{self._loaded}.so"
        shutil.copyfile(self._path, own)
        (chosen,) = (value for name, value in job.defines if name in _CHOSEN)
        return EmulatedKernel(own, chosen)


_CHOSEN = ("BEHAVIOUR", "METHOD")
