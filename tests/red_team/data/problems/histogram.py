"""How often each value is in a row: codes (rows, columns) uint8, out (rows, 256) int32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evotune.problems import Tensor, UserProblem

if TYPE_CHECKING:
    import torch


class Histogram(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows: int, columns: int) -> dict[str, Tensor]:
        return {"codes": Tensor((rows, columns), "uint8", range(256))}

    def outputs(self, rows: int, columns: int) -> dict[str, Tensor]:
        return {"out": Tensor((rows, 256), "int32")}

    def operations(self, rows: int, columns: int) -> int:
        return rows * columns

    def compute(self, codes: torch.Tensor) -> dict[str, torch.Tensor]:
        import torch

        counts = torch.zeros(len(codes), 256, dtype=torch.int32, device=codes.device)
        ones = torch.ones_like(codes, dtype=torch.int32)
        return {"out": counts.scatter_add(1, codes.long(), ones)}
