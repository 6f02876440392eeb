"""The sum of the eight largest values of each row, or of all: x (rows, columns), out (rows)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class Largest(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows,)}

    def operations(self, rows: int, columns: int) -> int:
        return rows * columns

    def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": x.topk(min(8, x.shape[-1]), dim=-1).values.sum(dim=-1)}
