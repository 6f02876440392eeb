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
"""Launches a kernel on addresses by the names of tensors and workspaces."""


class Caller(Protocol):
    """What a process needs to call the kernels of one backend on tensors of torch."""

    def refusal(self, device: torch.device) -> str:
        """Why the kernels cannot take tensors on this device, "" when they can."""

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        """Makes the device the one that allocations and launches mean."""

    def load(self, binary: Path) -> KernelCall:
        """A compiled kernel as a function."""
