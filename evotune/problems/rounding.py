"""What rounding a result to its type may change."""

from __future__ import annotations

import torch


def rounding_of(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of each element two roundings to `dtype`, about a unit in the last place; and the numbers so
    small that processors take them for zero (of float16 none does: a unit of the smallest)."""
    info = torch.finfo(dtype)
    smallest = info.tiny * info.eps if dtype == torch.float16 else info.tiny
    return values.abs() * info.eps + smallest
