"""RMSNorm: out = x / sqrt(mean(x * x) + eps) * weight; x, out (rows, columns), weight (columns)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class RmsNorm(UserProblem):
    """Against torch.nn.functional.rms_norm, and against the same written out."""

    sizes = ("rows", "columns")
    constants: ClassVar = {"eps": 1e-6}
    ranges: ClassVar = {"eps": (1e-8, 0.1)}

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns), "weight": (columns,)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows, columns)}

    def operations(self, rows: int, columns: int) -> int:
        return 4 * rows * columns

    def compute(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> dict[str, torch.Tensor]:
        import torch.nn.functional as F

        return {"out": F.rms_norm(x, weight.shape, weight, eps)}

    def baselines_of(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        import torch

        def written_out() -> dict[str, torch.Tensor]:
            scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
            return {"out": (x.float() * scale).to(x.dtype) * weight}

        return {
            "torch:rms_norm": lambda: self.compute(x, weight, eps),
            "torch:written_out": written_out,
        }
