"""The mask of a call, SDPA's `attn_mask`, as symbols of a case.

    mask           its kind: padding (boolean, the same for all heads and rows), bool (any other
                   boolean mask), or bias (numbers that are added to the scores)
    mask_batch     its sizes: 1 where it is broadcast, by a size of 1 or by a stride of 0
    mask_heads
    mask_rows
    mask_dtype     of a bias: the type of q, or float32

Nothing reads a mask's values, so padding may have holes. The tensor has two to four dimensions, and
its keys lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ._dispatch import LAYOUT
from ._loaded_kernels import Refused

TENSOR, MASK = "attn_mask", "mask"
NO_MASK, PADDING, BOOL, BIAS = "none", "padding", "bool", "bias"
_SIZES = ("batch", "heads", "rows")
_STRIDES = tuple(f"{TENSOR}_stride_{dimension}" for dimension in ("batch", "head", "row"))
FAR_ROWS = 1 << 30
"""Kernels keep the distance of two rows, in bytes, in 32 bits."""


class Mask(NamedTuple):
    """The mask of a case; its kind is none without one."""

    kind: str = NO_MASK
    batch: int = 1
    heads: int = 1
    rows: int = 1
    dtype: str = NO_MASK

    def symbols(self) -> dict[str, Any]:
        """All symbols of a case that state its mask, but for its strides."""
        return {
            "mask": self.kind,
            **{f"mask_{name}": getattr(self, name) for name in (*_SIZES, "dtype")},
            "has_mask": self.kind != NO_MASK,
            "mask_is_padding": self.kind == PADDING,
            "mask_is_bias": self.kind == BIAS,
            "mask_is_float32": self.dtype == "float32",
        }

    def told(self) -> dict[str, Any]:
        """The mask as an entry in a list of cases has it."""
        if self.kind == NO_MASK:
            return {}
        found = {"mask": self.kind, **{f"mask_{name}": getattr(self, name) for name in _SIZES}}
        return found | ({"mask_dtype": self.dtype} if self.kind == BIAS else {})

    def words(self) -> str:
        """The mask in words: "" for none."""
        sizes = "x".join(str(getattr(self, name)) for name in _SIZES)
        dtype = f" {self.dtype}" if self.kind == BIAS else ""
        return "" if self.kind == NO_MASK else f"{self.kind}{dtype} mask {sizes}"

    def alike(self) -> Iterator[Mask]:
        """The masks of all cases that are the call's: padding is a boolean mask, too."""
        yield self
        if self.kind == PADDING:
            yield self._replace(kind=BOOL)


def mask_of(symbols: Mapping[str, Any]) -> Mask:
    """The mask of a case with these symbols. They may lack those of masks, and have `mask_sizes`,
    the words of a region, in place of the sizes."""
    kind, dtype = (str(symbols.get(name, NO_MASK)) for name in ("mask", "mask_dtype"))
    words = str(symbols.get("mask_sizes") or "1 1 1").split()
    whole = {"batch": "batch", "heads": "heads", "rows": "seq_len_q"}
    batch, heads, rows = (
        int(symbols.get(f"mask_{name}", symbols[whole[name]] if word == name else 1))
        for name, word in zip(_SIZES, words, strict=True)
    )
    return Mask(kind, batch, heads, rows, dtype)


class SeenMask(NamedTuple):
    """The mask of a call. `strides`: in elements by their symbols, 0 where it is broadcast;
    `broadcast`: how it is, in the words of `mask_sizes` in `dispatch.json`."""

    mask: Mask
    strides: Mapping[str, int]
    broadcast: str
    is_contiguous: bool


UNMASKED = SeenMask(Mask(), dict.fromkeys(_STRIDES, 0), "", True)


def seen_mask(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> SeenMask | Refused:
    """The mask of a call, or why no kernel takes one like it. q and k have four dimensions."""
    whole = (int(q.shape[0]), int(q.shape[1]), int(q.shape[2]), int(k.shape[2]))
    shape = whole_shape(mask, whole)
    if shape is None:
        return Refused(MASK, f"a mask of shape {tuple(mask.shape)} for scores of {whole}")
    if mask.dtype not in (torch.bool, q.dtype, torch.float32):
        return Refused(MASK, f"a mask of {mask.dtype} for tensors of {q.dtype}")
    strides = (*(0,) * (4 - mask.dim()), *map(int, mask.stride()))
    sizes = tuple(1 if step == 0 else size for size, step in zip(shape, strides, strict=True))
    if sizes[3] != whole[3] or (whole[3] > 1 and strides[3] != 1):
        return Refused(LAYOUT, "the keys of a row of the mask do not lie side by side")
    steps = tuple(step if size > 1 else 0 for size, step in zip(sizes, strides, strict=True))
    if steps[2] >= FAR_ROWS:
        return Refused(LAYOUT, "rows of the mask lie 2^30 elements or more apart")
    batch, heads, rows, _ = sizes
    kind, dtype = BIAS, str(mask.dtype).removeprefix("torch.")
    if mask.dtype == torch.bool:
        kind, dtype = (PADDING if heads == rows == 1 else BOOL), NO_MASK
    words = (
        "-" if of == 1 else "1" if size == 1 else name
        for name, size, of in zip(_SIZES, sizes, whole, strict=False)
    )
    return SeenMask(
        Mask(kind, batch, heads, rows, dtype),
        dict(zip(_STRIDES, steps, strict=False)),
        " ".join(words),
        _are_contiguous(sizes, steps),
    )


def whole_shape(mask: torch.Tensor, whole: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The mask's shape with four dimensions; None unless it has two to four, which are broadcast to
    `whole`."""
    shape = (*(1,) * (4 - mask.dim()), *mask.shape)
    fits = 2 <= mask.dim() <= 4 and all(n in (1, of) for n, of in zip(shape, whole, strict=True))
    return shape if fits else None


def _are_contiguous(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
