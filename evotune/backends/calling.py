"""A compiled kernel called in the user's own process, on the user's own tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from evotune.device.launch import LaunchPlan

if TYPE_CHECKING:
    import torch

KernelCall: TypeAlias = Callable[[LaunchPlan, Mapping[str, int]], object]
"""Launches a kernel's plan; the mapping has the address of each tensor and workspace by name."""


class Caller(Protocol):
    """Calls the kernels of one backend in this process, on PyTorch tensors."""

    def refusal(self, device: torch.device) -> str:
        """Why the kernels cannot take tensors on this device, "" when they can."""

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        """Makes the device current, so that allocations and launches go to it."""

    def load(self, binary: Path) -> KernelCall:
        """Loads a compiled kernel; returns the function that calls it."""
