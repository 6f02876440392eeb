"""Cross-entropy forward over a vocabulary: the loss of each row of logits."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from evotune.problems import Tensor, UserProblem

if TYPE_CHECKING:
    import torch


class CrossEntropy(UserProblem):
    """logits (rows, classes), target (rows), the number of a class, loss (rows). Against
    F.cross_entropy."""

    sizes = ("rows", "classes")

    def inputs(self, rows: int, classes: int) -> dict[str, tuple[int, ...] | Tensor]:
        return {"logits": (rows, classes), "target": Tensor((rows,), "int64", range(classes))}

    def outputs(self, rows: int, classes: int) -> dict[str, tuple[int, ...]]:
        return {"loss": (rows,)}

    def operations(self, rows: int, classes: int) -> int:
        return 3 * rows * classes

    def exponentials(self, rows: int, classes: int) -> int:
        return rows * classes

    def compute(self, logits: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        import torch.nn.functional as F

        return {"loss": F.cross_entropy(logits, target, reduction="none")}

    def baselines_of(
        self, logits: torch.Tensor, target: torch.Tensor
    ) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        import torch

        found = {"torch:cross_entropy": lambda: self.compute(logits, target)}
        if logits.is_cuda and find_spec("triton"):  # PyTorch compiles for a GPU by Triton
            compiled = torch.compile(self.compute, dynamic=False)
            found["torch:compile"] = lambda: compiled(logits, target)
        return found
