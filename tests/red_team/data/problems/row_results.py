"""Problems of the third red team: one result for each row of x (rows, columns), or one softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evotune.problems import Tensor, UserProblem

if TYPE_CHECKING:
    import torch


class Rows(UserProblem):
    """x (rows, columns) to out (rows), both of the problem's type unless a subclass says more."""

    sizes = ("rows", "columns")

    def inputs(self, rows: int, columns: int) -> dict[str, Tensor | tuple[int, ...]]:
        return {"x": (rows, columns)}

    def outputs(self, rows: int, columns: int) -> dict[str, Tensor | tuple[int, ...]]:
        return {"out": (rows,)}

    def operations(self, rows: int, columns: int) -> int:
        return rows * columns


class RowSum(Rows):
    def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": x.sum(dim=-1)}


class RowMaximum(Rows):
    def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": x.amax(dim=-1)}


class RowSum32(RowSum):
    """Small integers: the sum of a row of 16,384 fits into a float32."""

    def inputs(self, rows: int, columns: int) -> dict[str, Tensor | tuple[int, ...]]:
        return {"x": Tensor((rows, columns), "int32", range(-1000, 1001))}

    def outputs(self, rows: int, columns: int) -> dict[str, Tensor | tuple[int, ...]]:
        return {"out": Tensor((rows,), "int32")}

    def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        import torch

        return {"out": x.sum(dim=-1, dtype=torch.int64).to(torch.int32)}


class RowSum64(RowSum):
    """Integers of 40 bits and a sign: the sum of a row of 8,192 fits into a float64."""

    def inputs(self, rows: int, columns: int) -> dict[str, Tensor | tuple[int, ...]]:
        return {"x": Tensor((rows, columns), "int64", range(-(1 << 40), 1 << 40))}

    def outputs(self, rows: int, columns: int) -> dict[str, Tensor | tuple[int, ...]]:
        return {"out": Tensor((rows,), "int64")}


class RowCount64(RowSum64):
    """Integers of 20 bits: the sum of a row of 4,096 fits into 32 bits."""

    def inputs(self, rows: int, columns: int) -> dict[str, Tensor | tuple[int, ...]]:
        return {"x": Tensor((rows, columns), "int64", range(1 << 20))}


class ArgMax(Rows):
    """The first place of a row's largest value."""

    def outputs(self, rows: int, columns: int) -> dict[str, Tensor | tuple[int, ...]]:
        return {"out": Tensor((rows,), "int64")}

    def compute(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        import torch

        places = torch.arange(x.shape[-1], device=x.device)
        is_largest = x == x.amax(dim=-1, keepdim=True)
        return {"out": torch.where(is_largest, places, x.shape[-1]).amin(dim=-1)}


class MaskedSoftmax(UserProblem):
    """softmax(x + mask); x, mask, out (rows, columns)."""

    sizes = ("rows", "columns")

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns), "mask": (rows, columns)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows, columns)}

    def operations(self, rows: int, columns: int) -> int:
        return 6 * rows * columns

    def compute(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": (x + mask).softmax(dim=-1)}
