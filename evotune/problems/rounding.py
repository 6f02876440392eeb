"""The error of rounding a result to its type."""

from __future__ import annotations

import torch


def rounding_of(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Two roundings of each element to `dtype`, about a unit in the last place. Plus the smallest
    normal number, since processors may flush smaller ones to zero (in float16 none does: plus a
    unit of the smallest)."""
    return values.abs() * torch.finfo(dtype).eps + _smallest(dtype)


def rounding_share(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`scale * rounding_of(v)` of elements v, where `values` are `scale * v`."""
    return values.abs().mul_(torch.finfo(dtype).eps).add_(scale, alpha=_smallest(dtype))


def _smallest(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return info.tiny * info.eps if dtype == torch.float16 else info.tiny
