"""Cross-entropy forward over a vocabulary: the loss of each row of logits."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from evotune.problems import UserProblem

if TYPE_CHECKING:
    import torch


class CrossEntropy(UserProblem):
    """logits (rows, classes), target (rows, 3), loss (rows). Against F.cross_entropy.

    A target is three digits to the base 256, since tensors have one element type, and even bfloat16
    holds those. PyTorch's baselines get the classes as integers, made before the clock runs.
    """

    sizes = ("rows", "classes")

    def inputs(self, rows: int, classes: int) -> dict[str, tuple[int, ...]]:
        return {"logits": (rows, classes), "target": (rows, 3)}

    def outputs(self, rows: int, classes: int) -> dict[str, tuple[int, ...]]:
        return {"loss": (rows,)}

    def operations(self, rows: int, classes: int) -> int:
        return 3 * rows * classes

    def check(self, rows: int, classes: int) -> None:
        if classes > 1 << 24:
            raise ValueError("three digits hold 16,777,216 classes")

    def make_input(
        self, name: str, shape: tuple[int, ...], kind: str, generator: torch.Generator
    ) -> torch.Tensor:
        import torch

        if name == "logits":
            return super().make_input(name, shape, kind, generator)
        # Digits of any size: classes beyond the last one mean the last one.
        digits = torch.randint(0, 256, shape, generator=generator, device=generator.device)
        digits[:, 0] %= 2
        return digits.float()

    def compute(self, logits: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return self._losses(logits, self._classes(logits, target))

    def baselines_of(
        self, logits: torch.Tensor, target: torch.Tensor
    ) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        import torch

        classes = self._classes(logits, target)
        found = {"torch:cross_entropy": lambda: self._losses(logits, classes)}
        if logits.is_cuda and find_spec("triton"):  # PyTorch compiles for a GPU by Triton
            compiled = torch.compile(self._losses, dynamic=False)
            found["torch:compile"] = lambda: compiled(logits, classes)
        return found

    @staticmethod
    def _losses(logits: torch.Tensor, classes: torch.Tensor) -> dict[str, torch.Tensor]:
        import torch.nn.functional as F

        return {"loss": F.cross_entropy(logits, classes, reduction="none")}

    @staticmethod
    def _classes(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        # Integers from the first step on: rounding errors must not lead to another class.
        digits = target.round().long()
        wanted = 65536 * digits[:, 0] + 256 * digits[:, 1] + digits[:, 2]
        return wanted.clamp(0, logits.shape[-1] - 1)
