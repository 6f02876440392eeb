"""The error of rounding a result to its type."""

from __future__ import annotations

import torch


def rounding_of(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The error of two roundings of each element to `dtype`: about a unit in the last place, plus
    the smallest normal number, since processors may flush smaller ones to zero. In float16 none
    does so: there it is plus the smallest number of all. Integers are exact."""
    if not dtype.is_floating_point:
        return torch.full_like(values, 0.5)
    return values.abs() * torch.finfo(dtype).eps + _smallest(dtype)


def rounding_share(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`scale * rounding_of(v)` for elements v, given as `values`, which are `scale * v`."""
    return values.abs().mul_(torch.finfo(dtype).eps).add_(scale, alpha=_smallest(dtype))


def _smallest(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return info.tiny * info.eps if dtype == torch.float16 else info.tiny
