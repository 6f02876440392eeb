"""A problem of an installed package: out = 2 * x."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class Doubling(UserProblem):
    name = "doubling"
    sizes = ("count",)

    def inputs(self, count: int) -> dict[str, tuple[int, ...]]:
        return {"x": (count,)}

    def outputs(self, count: int) -> dict[str, tuple[int, ...]]:
        return {"out": (count,)}

    def operations(self, count: int) -> int:
        return count

    def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": 2 * x}
