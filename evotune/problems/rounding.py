"""What rounding a result to its type may change."""

from __future__ import annotations

import torch


def rounding_of(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of each element two roundings to `dtype`, about a unit in the last place; and the numbers so
    small that processors take them for zero (of float16 none does: a unit of the smallest)."""
    return values.abs() * torch.finfo(dtype).eps + _smallest(dtype)


def rounding_share(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`scale * rounding_of(v)` of elements v, where `values` are `scale * v`."""
    return values.abs().mul_(torch.finfo(dtype).eps).add_(scale, alpha=_smallest(dtype))


def _smallest(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return info.tiny * info.eps if dtype == torch.float16 else info.tiny
