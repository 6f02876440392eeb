"""Softmax over the last dimension: x, out (rows, columns)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class Softmax(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows, columns)}

    def operations(self, rows: int, columns: int) -> int:
        return 5 * rows * columns

    def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": x.softmax(dim=-1)}
