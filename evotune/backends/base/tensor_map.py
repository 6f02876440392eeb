"""Tensor maps as plain data: they describe a tensor to a GPU's copy engine (TMA, sm_90 and later).

Limits: CUDA driver API, "Tensor Map Object Management", `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from evotune.problems.element_types import ELEMENT_BYTES
from evotune.space.specs import L2_PROMOTIONS, MOST_BOX, MOST_DIMENSIONS, SWIZZLES

FIRST_ARCH = 90
UNIT_BYTES = 16  # strides and a box's rows are multiples of it
MOST_EXTENT = 1 << 32
MOST_STRIDE_BYTES = 1 << 40


class TensorMap(msgspec.Struct, frozen=True, array_like=True):
    """Boxes of a tensor whose last dimension is contiguous. `extents`, `box` and `strides` count
    elements, the outermost dimension first; `swizzle_bytes` and `l2_promotion_bytes` are 0 for
    none. `strides` are those of all dimensions; empty where the tensor is contiguous.

    The part of a box that lies outside the tensor is read as zeros and not written.
    """

    dtype: str
    extents: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    l2_promotion_bytes: int = 0
    strides: tuple[int, ...] = ()

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    def strides_bytes(self) -> tuple[int, ...]:
        """The distance from one index to the next for every dimension but the last, outermost
        first."""
        if self.strides:
            return tuple(self.element_bytes * stride for stride in self.strides[:-1])
        return tuple(
            self.element_bytes * math.prod(self.extents[i + 1 :])
            for i in range(len(self.extents) - 1)
        )

    def violation(self) -> str:
        """Why the driver would refuse the map, in words; "" when it would take it."""
        return next(self._violations(), "")

    def _violations(self) -> Iterator[str]:
        rank = len(self.extents)
        if self.dtype not in ELEMENT_BYTES:
            yield f"a tensor map of {self.dtype}; known: {', '.join(ELEMENT_BYTES)}"
        elif not 1 <= rank <= MOST_DIMENSIONS:
            yield f"a tensor map of {rank} dimensions; at most {MOST_DIMENSIONS} are possible"
        elif len(self.box) != rank:
            yield f"a box of {len(self.box)} sizes for a tensor of {rank} dimensions"
        else:
            yield from self._violations_of_sizes()
            yield from self._violations_of_rows()

    def _violations_of_sizes(self) -> Iterator[str]:
        for size in self.box:
            if not 1 <= size <= MOST_BOX:
                yield f"a box size of {size}; from 1 to {MOST_BOX} are possible"
        for extent in self.extents:
            if not 1 <= extent <= MOST_EXTENT:
                yield f"an extent of {extent}; from 1 to 2^32 are possible"
        for stride in self.strides_bytes():
            if stride % UNIT_BYTES or stride >= MOST_STRIDE_BYTES:
                yield f"a stride of {stride} bytes; multiples of 16 below 2^40 are possible"

    def _violations_of_rows(self) -> Iterator[str]:
        for what, found, known in (
            ("swizzle", self.swizzle_bytes, SWIZZLES),
            ("L2 promotion", self.l2_promotion_bytes, L2_PROMOTIONS),
        ):
            if found not in known:
                yield f"{what} of {found} bytes; expected one of {', '.join(map(str, known))}"
        row_bytes = self.box[-1] * self.element_bytes
        if row_bytes % UNIT_BYTES:
            yield f"a box row of {row_bytes} bytes, which is not a multiple of {UNIT_BYTES}"
        if self.swizzle_bytes and row_bytes > self.swizzle_bytes:
            yield f"a box row of {row_bytes} bytes, more than the swizzle of {self.swizzle_bytes}"
