"""Layouts of attention's tensors in memory: which strides q, k, v and out have.

The last dimension is always contiguous. Strides count elements. In a layout with gaps, what lies
between the rows of a tensor belongs to others.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT = "bhld"
LAYOUTS: Mapping[str, str] = {
    DEFAULT: "contiguous (batch, heads, length, head_dim)",
    "blhd": "memory is (batch, length, heads, head_dim), as a projection leaves it",
    "packed_qkv": "q, k and v are slices of one (batch, length, heads + 2 kv_heads, head_dim)",
    "mixed": "each tensor has dimensions in an order of its own, and gaps between rows",
}
TENSORS = ("q", "k", "v", "out")
FAR = tuple(f"far_{tensor}" for tensor in TENSORS)
"""Further layouts, for tests: the batches (or, of one batch, the heads) of one tensor lie more than
2^31 elements apart."""
DIMENSIONS = ("batch", "head", "row")
_GAP = 8
"""Gaps of `mixed` are multiples of so many elements: rows stay aligned to 16 bytes."""

Strides = tuple[int, int, int]
"""From one batch, head and row to the next."""


def symbols_of(tensor: str) -> tuple[str, ...]:
    """The names of a tensor's strides: q_stride_batch, q_stride_head, q_stride_row."""
    return tuple(f"{tensor}_stride_{dimension}" for dimension in DIMENSIONS)


def stride_symbols(layout: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The strides of all tensors by their symbols. `sizes` are those of a case."""
    found = {tensor: _strides(layout, tensor, sizes) for tensor in TENSORS}
    return {
        name: stride
        for tensor, strides in found.items()
        for name, stride in zip(symbols_of(tensor), strides, strict=True)
    }


def _strides(layout: str, tensor: str, sizes: Mapping[str, int]) -> Strides:
    of_queries = tensor in ("q", "out")
    batch, columns = sizes["batch"], sizes["head_dim" if tensor in ("q", "k") else "value_dim"]
    heads = sizes["heads" if of_queries else "kv_heads"]
    rows = sizes["seq_len_q" if of_queries else "seq_len_k"]
    if layout == f"far_{tensor}":
        far = (1 << 31) + _GAP
        return (far, rows * columns, columns) if batch > 1 else (heads * far, far, columns)
    if layout == "mixed":
        return _MIXED[tensor](batch, heads, rows, columns)
    row = heads * columns
    if layout == "packed_qkv" and tensor != "out":
        row = sizes["heads"] * sizes["head_dim"]
        row += sizes["kv_heads"] * (sizes["head_dim"] + sizes["value_dim"])
    if layout == DEFAULT or layout in FAR:
        return heads * rows * columns, rows * columns, columns
    return rows * row, columns, row


def _of_q(batch: int, heads: int, rows: int, columns: int) -> Strides:
    """(heads, batch, rows), longer rows."""
    row = columns + _GAP
    return rows * row + _GAP, batch * (rows * row + _GAP), row


def _of_k(batch: int, heads: int, rows: int, columns: int) -> Strides:
    """(batch, rows, heads), longer rows of all heads, and longer heads."""
    head = columns + 2 * _GAP
    row = heads * head + 3 * _GAP
    return rows * row, head, row


def _of_v(batch: int, heads: int, rows: int, columns: int) -> Strides:
    """(rows, batch, heads)."""
    of_batch = heads * columns + 5 * _GAP
    return of_batch, columns, batch * of_batch


def _of_out(batch: int, heads: int, rows: int, columns: int) -> Strides:
    """(batch, heads, rows), all longer."""
    row = columns + 3 * _GAP
    head = rows * row + _GAP
    return heads * head + 2 * _GAP, head, row


_MIXED = {"q": _of_q, "k": _of_k, "v": _of_v, "out": _of_out}
