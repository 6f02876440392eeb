"""How two results of a call differ, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_PART = 1 << 26  # elements that are compared at a time


def difference(known: Sequence[Any], found: Sequence[Any]) -> str:
    """Why they are not the same values; "" where they are."""
    if len(known) != len(found):
        return f"{len(found)} values in place of {len(known)}"
    pairs = zip(known, found, strict=True)
    return next(filter(None, (_difference(wanted, value) for wanted, value in pairs)), "")


def _difference(wanted: Any, value: Any) -> str:
    if type(wanted) is not type(value):
        return f"{type(value).__name__} in place of {type(wanted).__name__}"
    if isinstance(wanted, tuple):
        return difference(wanted, value)
    if isinstance(wanted, torch.Tensor):
        return _difference_of_tensors(wanted, value)
    return "" if wanted is value else f"{value!r} in place of {wanted!r}"


def _difference_of_tensors(wanted: torch.Tensor, value: torch.Tensor) -> str:
    for fact in ("is_nested", "dtype", "device"):
        if getattr(wanted, fact) != getattr(value, fact):
            return f"{fact} {getattr(value, fact)} in place of {getattr(wanted, fact)}"
    if wanted.is_nested:
        return difference(wanted.unbind(), value.unbind())
    if value.shape != wanted.shape:
        return f"shape {tuple(value.shape)} in place of {tuple(wanted.shape)}"
    same = same_bits(wanted, value)
    return "" if same else f"off by up to {largest_difference(wanted, value):.3g}, and not served"


def other_facts(known: Any, found: Any) -> str:
    """Why values with the same bits are not the same otherwise."""
    if not isinstance(known, torch.Tensor) or known.is_nested:
        return ""
    for fact in ("stride", "is_inference"):
        if getattr(known, fact)() != getattr(found, fact)():
            return f"{fact} {getattr(found, fact)()} in place of {getattr(known, fact)()}"
    if known.requires_grad != found.requires_grad or type(known) is not type(found):
        return "another requires_grad or type"
    return ""


def same_bits(known: torch.Tensor, found: torch.Tensor) -> bool:
    """Compares some elements at a time: a comparison takes memory, and a call's own may be huge."""
    if known.device.type == "meta" or type(known) not in (torch.Tensor, torch.nn.Parameter):
        return True
    known, found = known.detach(), found.detach()
    if known.is_complex():
        known, found = torch.view_as_real(known), torch.view_as_real(found)
    if known.shape != found.shape or not (known.is_contiguous() and found.is_contiguous()):
        return _same_part(known, found)
    parts = (tensor.flatten().split(_PART) for tensor in (known, found))
    return all(_same_part(*pair) for pair in zip(*parts, strict=True))


def _same_part(known: torch.Tensor, found: torch.Tensor) -> bool:
    return bool(torch.equal(known, found)) or (
        known.dtype.is_floating_point
        and bool(torch.equal(known.isnan(), found.isnan()))
        and bool(torch.equal(known.nan_to_num(), found.nan_to_num()))
    )


def largest_difference(known: torch.Tensor, found: torch.Tensor) -> float:
    return float((known.detach().double() - found.detach().double()).abs().max())
