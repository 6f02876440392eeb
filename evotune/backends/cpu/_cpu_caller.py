"""C++ kernels called in the user's own process."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from evotune.backends.base.backend import KernelCall
from evotune.backends.base.launch import LaunchPlan
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.base.session import c_value
from evotune.backends.cpu import _native_runtime


class CpuCaller:
    """Calls kernels in PyTorch's threads. For the time of a call PyTorch has no more threads than
    the profile that the kernel was compiled for."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile

    def refusal(self, device: torch.device) -> str:
        return "" if device.type == "cpu" else f"the kernel was compiled for {self._profile.name}"

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def load(self, binary: Path) -> KernelCall:
        _native_runtime.share()
        library = ctypes.CDLL(str(binary))
        threads = int(self._profile.attributes["threads"])

        def call(plan: LaunchPlan, addresses: Mapping[str, int]) -> None:
            arguments = [
                ctypes.c_void_p(addresses[argument.name])
                if argument.type in ("tensor", "workspace")
                else c_value(argument)
                for argument in plan.arguments
            ]
            before = torch.get_num_threads()
            if before > threads:
                torch.set_num_threads(threads)
            try:
                getattr(library, plan.entry)(*arguments)
            finally:
                if before > threads:
                    torch.set_num_threads(before)

        return call
