"""The red team's CUDA kernels through the real gate, on a CPU."""

from __future__ import annotations

from pathlib import Path

from evotune.runs.setup import KernelSetup, load_setup
from evotune.verify.gate import Subject
from evotune.workers.executor import CaseJob

from .emulated.session import EmulatedFile, EmulatedKernel, EmulatedSession
from .in_process import InProcess

_DEVICE = "h200"  # the nominal device; the code is compiled for the CPU


class EmulatedInProcess(InProcess):
    """The kernels of one CUDA space. A kernel keeps its device memory over the cases of one
    binary, as a module that is loaded once does."""

    def __init__(self, folder: Path, space: str) -> None:
        self._files: dict[tuple[tuple[str, int], ...], EmulatedFile] = {}
        self._kernels: dict[str, EmulatedKernel] = {}
        super().__init__(folder, space)

    def _load(self, space: Path) -> KernelSetup:
        return load_setup(space, _DEVICE, compile_only=True)

    def _open(self) -> EmulatedSession:
        return EmulatedSession()

    def _subject(self, job: CaseJob) -> Subject:
        rest = tuple((name, value) for name, value in job.compile.defines if name != self._gene)
        if rest not in self._files:
            entries = tuple(dict.fromkeys(launch.entry for launch in job.plan.launches))
            self._files[rest] = EmulatedFile(self._folder, job.compile, entries)
        if job.compile.key not in self._kernels:
            self._kernels[job.compile.key] = self._files[rest].load(job.compile)
        return Subject(job.case, job.plan, self._kernels[job.compile.key])
