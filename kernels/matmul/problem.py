"""Matrix product, row-major: a (m, k), b (k, n), out (m, n)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class Matmul(UserProblem):
    """Against torch.matmul, in float32 without TF32 (PyTorch's default)."""

    sizes = ("m", "n", "k")

    def inputs(self, m: int, n: int, k: int) -> dict[str, tuple[int, ...]]:
        return {"a": (m, k), "b": (k, n)}

    def outputs(self, m: int, n: int, k: int) -> dict[str, tuple[int, ...]]:
        return {"out": (m, n)}

    def operations(self, m: int, n: int, k: int) -> int:
        return 2 * m * n * k

    def compute(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": a @ b}

    def baselines_of(
        self, a: torch.Tensor, b: torch.Tensor
    ) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        return {"torch:matmul": lambda: self.compute(a, b)}
