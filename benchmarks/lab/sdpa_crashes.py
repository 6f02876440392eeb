"""Kinds of calls that are known to crash PyTorch's own SDPA on a GPU, each with its name.

A crash costs two or three child processes of `export_random_calls`, many seconds. So most calls of
these kinds are drawn again, and counted by the rule's name. A rule is written down when a
campaign's record lists its calls under `own_crashes`: PyTorch crashes, without the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

MADE = 0.01
"""The share of such calls that is made all the same."""
_ALIGNMENT = 16
_MOST_BLOCKS = 65_535  # along y and z of a grid

Tensors = Sequence[torch.Tensor]


def rule(tensors: Sequence[Any], options: Mapping[str, Any]) -> str:
    """The name of the first rule that holds for a call; "" where none does."""
    if not all(_lies_on_a_gpu(tensor) for tensor in tensors):
        return ""
    found = (name for name, holds in RULES.items() if holds(tensors, options))
    return next(found, "")


def _lies_on_a_gpu(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.device.type == "cuda"
        and tensor.layout == torch.strided
        and not tensor.is_nested
    )


def _is_misaligned(tensors: Tensors, options: Mapping[str, Any]) -> bool:
    """The memory-efficient kernels load 16 bytes at once: "misaligned address"."""
    plain = (t for t in tensors if type(t) is torch.Tensor and not t._is_zerotensor())
    return any(t.data_ptr() % _ALIGNMENT for t in plain)


def _has_misaligned_rows(tensors: Tensors, options: Mapping[str, Any]) -> bool:
    """The same, of kernels for one query or one key: their rows may not begin between."""
    plain = [t for t in tensors if type(t) is torch.Tensor and t.dim() > 1]
    return any(t.shape[-2] == 1 for t in plain) and any(
        stride * t.element_size() % _ALIGNMENT
        for t in plain
        for size, stride in zip(t.shape[:-1], t.stride()[:-1], strict=True)
        if size > 1
    )


def _has_no_memory(tensors: Tensors, options: Mapping[str, Any]) -> bool:
    """Kernels read zeros that lie nowhere: SIGSEGV."""
    return any(t._is_zerotensor() for t in tensors)


def _has_odd_dropout(tensors: Tensors, options: Mapping[str, Any]) -> bool:
    """A probability below 0, of 1 or above: SIGSEGV."""
    return not 0.0 <= float(options.get("dropout_p", 0.0)) < 1.0


def _has_wider_keys(tensors: Tensors, options: Mapping[str, Any]) -> bool:
    """Queries and keys of different sizes: SIGSEGV. Nothing is read where one has no element."""
    if any(t.dim() == 0 or t.numel() == 0 for t in tensors):
        return False
    return int(tensors[0].shape[-1]) != int(tensors[1].shape[-1])


def _has_too_many_batches(tensors: Tensors, options: Mapping[str, Any]) -> bool:
    """Batches are blocks along a short dimension of the grid: "invalid argument"."""
    return any(t.dim() > 2 and t.shape[0] > _MOST_BLOCKS for t in tensors)


def _has_no_keys_heads(tensors: Tensors, options: Mapping[str, Any]) -> bool:
    """The number of q's heads is divided by that of the keys: SIGFPE."""
    grouped = bool(options.get("enable_gqa", False))
    return grouped and any(t.dim() > 2 and t.shape[-3] == 0 for t in tensors[1:])


RULES: dict[str, Callable[[Tensors, Mapping[str, Any]], bool]] = {
    "zeros without memory": _has_no_memory,
    "a dropout below 0, of 1 or above": _has_odd_dropout,
    "queries and keys of different sizes": _has_wider_keys,
    "q, k or v begins at no multiple of 16 bytes": _is_misaligned,
    "one query or key, and rows at no multiples of 16 bytes": _has_misaligned_rows,
    "more than 65,535 batches": _has_too_many_batches,
    "enable_gqa, and no head of keys or values": _has_no_keys_heads,
}
