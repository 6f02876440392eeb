"""RMSNorm: out = x / sqrt(mean(x * x) + eps) * weight; x, out (rows, columns), weight (columns)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class RmsNorm(UserProblem):
    sizes = ("rows", "columns")
    constants: ClassVar = {"eps": 1e-5}

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns), "weight": (columns,)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows, columns)}

    def operations(self, rows: int, columns: int) -> int:
        return 4 * rows * columns

    def compute(self, x: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        import torch.nn.functional as F

        return {"out": F.rms_norm(x, weight.shape, weight, self.constants["eps"])}
