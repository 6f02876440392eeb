"""Softmax over the last dimension: x, out (rows, columns)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class Softmax(UserProblem):
    """Against torch.softmax. FLOPs as usual: five for each element."""

    sizes = ("rows", "columns")

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows, columns)}

    def operations(self, rows: int, columns: int) -> int:
        return 5 * rows * columns

    def exponentials(self, rows: int, columns: int) -> int:
        return rows * columns

    def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": x.softmax(dim=-1)}

    def baselines_of(self, x: torch.Tensor) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        return {"torch:softmax": lambda: self.compute(x)}
