"""Places in tensors that are not contiguous: rows of elements, and the gaps between rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evotune.problems.element_types import torch_dtype
from evotune.problems.problem import TensorSpec


def strided_view(payload: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """`payload` (count, bytes) as `count` tensors of the shape and strides in `spec`: a view
    (count, *shape)."""
    elements = payload.view(torch_dtype(spec.dtype))
    shape, strides = (len(elements), *spec.shape), (elements.stride(0), *spec.all_strides)
    return elements.as_strided(shape, strides, elements.storage_offset())


def gap_words(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """A mask of the 16-bit words between a tensor's first and last element that no element has."""
    dtype = torch_dtype(spec.dtype)
    nbytes = spec.span * dtype.itemsize
    free = torch.full((1, nbytes), 1, dtype=torch.uint8, device=device)
    strided_view(free, spec).zero_()
    return free.view(torch.int16)[0] != 0


def run_of(view: torch.Tensor, place: int, count: int) -> torch.Tensor:
    """A view of `count` elements from the flat index `place` on, in each of the tensors `view`
    (tensors, *shape).

    `place` and `count` are as `fitted` gives them. The view is (tensors, count) for a part of one
    row, and (tensors, rows, columns) for whole rows of one head.
    """
    *outer, columns = view.shape[1:]
    row, column = divmod(place, columns)
    *at, first = _unravelled(row, outer)
    if column + count <= columns:
        return _part(view, [*at, first, slice(column, column + count)])
    return _part(view, [*at, slice(first, first + count // columns)])


def fitted(spec: TensorSpec, place: int, count: int) -> tuple[int, int]:
    """The place and the count of elements nearest to these that `run_of` takes: a part of one row,
    or whole rows of one head."""
    columns = spec.shape[-1]
    rows = spec.shape[-2] if len(spec.shape) > 1 else 1
    if count < columns:
        return min(place, (place // columns + 1) * columns - count), count
    wanted = min(rows, count // columns)
    head, row = divmod(place // columns, rows)
    return (head * rows + min(row, rows - wanted)) * columns, wanted * columns


def spot_of(view: torch.Tensor, place: float, nbytes: int) -> torch.Tensor:
    """The bytes of some rows of each tensor of `view`: a few, from the share `place` of all rows
    on."""
    rows = view.view(torch.uint8)
    *outer, width = rows.shape[1:]
    total = rows[0].numel() // width
    *at, first = _unravelled(int(place * total), outer)
    count = max(1, nbytes // width)
    return _part(rows, [*at, slice(first, first + count), slice(nbytes)])


def _part(view: torch.Tensor, indices: Sequence[int | slice]) -> torch.Tensor:
    """The same part of each tensor of `view`."""
    whole: list[int | slice] = [slice(None)]
    return view[tuple(whole + list(indices))]


def _unravelled(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The indices of element `number` of a tensor of this shape; at least one."""
    found: list[int] = []
    for size in reversed(shape):
        number, index = divmod(number, size)
        found.append(index)
    return tuple(reversed(found)) or (0,)
