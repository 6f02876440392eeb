"""The error of rounding a result to its type."""

from __future__ import annotations

import torch


def rounding_of(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The error that two roundings to `dtype` make in each element, in the unit of `values`.

    It is one unit in the last place plus the smallest normal number, because processors may flush
    smaller numbers to zero. For float16 and floats of 8 bits no processor does, so there it is one
    unit plus the smallest subnormal number. For integers it is 0.5: no difference is allowed.
    """
    if not dtype.is_floating_point:
        return torch.full_like(values, 0.5)
    return values.abs() * torch.finfo(dtype).eps + _smallest(dtype)


def rounding_share(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`scale * rounding_of(v)` for elements v, given as `values`, which are `scale * v`."""
    return values.abs().mul_(torch.finfo(dtype).eps).add_(scale, alpha=_smallest(dtype))


_NEVER_FLUSHED = (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def _smallest(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return info.tiny * info.eps if dtype in _NEVER_FLUSHED else info.tiny
