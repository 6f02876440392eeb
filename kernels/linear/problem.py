"""A linear layer: out = x weight^T + bias, and the same with GELU."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class Linear(UserProblem):
    """x (m, k), weight (n, k), bias (n), out (m, n). Against F.linear: cuBLAS, with the bias in its
    epilogue."""

    sizes = ("m", "n", "k")
    dtypes: ClassVar = ("float16", "bfloat16")

    def inputs(self, m: int, n: int, k: int) -> dict[str, tuple[int, ...]]:
        return {"x": (m, k), "weight": (n, k), "bias": (n,)}

    def outputs(self, m: int, n: int, k: int) -> dict[str, tuple[int, ...]]:
        return {"out": (m, n)}

    def operations(self, m: int, n: int, k: int) -> int:
        return 2 * m * n * k

    def compute(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        import torch.nn.functional as F

        return {"out": F.linear(x, weight, bias)}

    def baselines_of(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        return {"torch:linear": lambda: self.compute(x, weight, bias)}


class LinearGelu(Linear):
    """out = GELU(x weight^T + bias). Against eager PyTorch, two operations, and on a GPU against
    torch.compile."""

    def compute(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        import torch.nn.functional as F

        return {"out": F.gelu(F.linear(x, weight, bias))}

    def baselines_of(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        import torch

        found = {"torch:eager": lambda: self.compute(x, weight, bias)}
        if x.is_cuda and find_spec("triton"):  # PyTorch compiles for a GPU by Triton
            compiled = torch.compile(self.compute, dynamic=False)
            found["torch:compile"] = lambda: compiled(x, weight, bias)
        return found
