"""Residual addition and RMSNorm: total = x + residual, out = rms_norm(total) * weight. Also with
`out` in 8-bit floats, and a scale for each row."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from evotune.problems import Tensor, UserProblem

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

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...] | Tensor]:
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
        return _eager_and_compiled(self.compute, x, residual, weight, eps)


class AddRmsNormFp8(AddRmsNorm):
    """As `AddRmsNorm`, but out is float8_e4m3, and norm = out * scale, with a scale (float32) for
    each row that makes its largest number 448. An FP8 matrix product takes both."""

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...] | Tensor]:
        return {
            "total": (rows, columns),
            "out": Tensor((rows, columns), "float8_e4m3"),
            "scale": Tensor((rows,), "float32"),
        }

    def operations(self, rows: int, columns: int) -> int:
        return 7 * rows * columns

    def compute(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> dict[str, torch.Tensor]:
        """`out` before it is rounded."""
        import torch.nn.functional as F

        total = x + residual
        norm = F.rms_norm(total, weight.shape, weight, eps)
        wide = norm if norm.dtype.itemsize > 2 else norm.float()
        scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
        return {"total": total, "out": wide / scale, "scale": scale.squeeze(-1)}

    def baselines_of(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        return _eager_and_compiled(self._quantised, x, residual, weight, eps)

    def _quantised(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> dict[str, torch.Tensor]:
        import torch

        found = self.compute(x, residual, weight, eps)
        return {**found, "out": found["out"].clamp(-448.0, 448.0).to(torch.float8_e4m3fn)}


def _eager_and_compiled(
    compute: Callable[..., dict[str, torch.Tensor]], *arguments: Any
) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
    import torch

    found = {"torch:eager": lambda: compute(*arguments)}
    if arguments[0].is_cuda and find_spec("triton"):  # PyTorch compiles for a GPU by Triton
        compiled = torch.compile(compute, dynamic=False)
        found["torch:compile"] = lambda: compiled(*arguments)
    return found
