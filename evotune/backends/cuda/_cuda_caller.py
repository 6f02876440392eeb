"""CUDA kernels called in the user's own process, on PyTorch's current stream."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from evotune.backends.base.backend import KernelCall
from evotune.backends.base.launch import LaunchPlan
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.cuda._kernel import CudaKernel, bind

_ready = threading.local()


class CudaCaller:
    """Calls kernels on the GPUs of one architecture."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile

    def refusal(self, device: torch.device) -> str:
        mine = f"the kernel was compiled for {self._profile.name}"
        if device.type != "cuda":
            return mine
        major, minor = torch.cuda.get_device_capability(device)
        wanted = self._profile.attributes["arch"]
        if 10 * major + minor != wanted:
            return f"its architecture is sm_{major}{minor}, but {mine} (sm_{wanted})"
        return ""

    @contextlib.contextmanager
    def current(self, device: torch.device) -> Iterator[None]:
        """Makes the GPU current. The driver's functions need the GPU's context, which PyTorch makes
        current in a thread when it first works there."""
        with torch.cuda.device(device):
            if device.index not in _ready.__dict__.setdefault("devices", set()):
                torch.zeros(1, device=device)
                torch.cuda.synchronize()
                _ready.devices.add(device.index)
            yield

    def load(self, binary: Path) -> KernelCall:
        """A function that launches the kernel. It loads the machine code once for each GPU. Code
        that fills constant memory is loaded once for each stream, since a kernel on another stream
        may still read what is there."""
        loaded: dict[tuple[int, int | None], CudaKernel] = {}

        def call(plan: LaunchPlan, addresses: Mapping[str, int]) -> None:
            stream = _current_stream()
            key = (torch.cuda.current_device(), stream if plan.constant_memory else None)
            if key not in loaded:
                loaded[key] = CudaKernel(binary)
            bind(loaded[key], plan, addresses, lambda: stream)()

        return call


def _current_stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)
