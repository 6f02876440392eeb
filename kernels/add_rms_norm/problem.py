"""Residual addition and RMSNorm: total = x + residual, out = rms_norm(total) * weight."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class AddRmsNorm(UserProblem):
    """x, residual, total and out (rows, columns), weight (columns). Against eager PyTorch, two
    operations, and on a GPU against torch.compile, which fuses them."""

    sizes = ("rows", "columns")
    constants: ClassVar = {"eps": 1e-6}
    ranges: ClassVar = {"eps": (1e-8, 0.1)}

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns), "residual": (rows, columns), "weight": (columns,)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"total": (rows, columns), "out": (rows, columns)}

    def operations(self, rows: int, columns: int) -> int:
        return 5 * rows * columns

    def compute(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> dict[str, torch.Tensor]:
        import torch.nn.functional as F

        total = x + residual
        return {"total": total, "out": F.rms_norm(total, weight.shape, weight, eps)}

    def baselines_of(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        import torch

        found = {"torch:eager": lambda: self.compute(x, residual, weight, eps)}
        if x.is_cuda and find_spec("triton"):  # PyTorch compiles for a GPU by Triton
            compiled = torch.compile(self.compute, dynamic=False)
            found["torch:compile"] = lambda: compiled(x, residual, weight, eps)
        return found
