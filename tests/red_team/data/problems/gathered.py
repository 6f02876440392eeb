"""Rows of a table, picked by lengths that fit together: table (rows, columns), ends (groups) int64.

out (groups, columns) is the sum of each group's rows, which are those from ends[g - 1] to ends[g].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evotune.problems import Tensor, UserProblem

if TYPE_CHECKING:
    import torch


class Gathered(UserProblem):
    sizes = ("groups", "rows", "columns")

    def inputs(self, groups: int, rows: int, columns: int) -> dict[str, Tensor | tuple[int, ...]]:
        return {
            "table": (rows, columns),
            "ends": Tensor((groups,), "int64", "indices"),
        }

    def outputs(self, groups: int, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (groups, columns)}

    def operations(self, groups: int, rows: int, columns: int) -> int:
        return rows * columns

    def make_indices(
        self, kind: str, generator: torch.Generator, groups: int, rows: int, columns: int
    ) -> dict[str, torch.Tensor]:
        import torch

        ends = torch.randint(rows + 1, (groups,), generator=generator, device=generator.device)
        return {"ends": ends.sort().values}

    def compute(self, table: torch.Tensor, ends: torch.Tensor) -> dict[str, torch.Tensor]:
        import torch

        sums = torch.cat([torch.zeros_like(table[:1]), table.cumsum(0)])
        starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
        return {"out": sums[ends] - sums[starts]}
