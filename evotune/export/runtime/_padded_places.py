"""Where the tokens of a padded batch lie when they are packed one after the other.

A kernel for packed sequences needs the number of tokens as a number in Python, so an exact packing
waits for the GPU. While a CUDA graph is captured it cannot wait. There every place of the batch is
packed: first the tokens, then the padding, in further sequences. As many sequences as the batch has
hold the padding among the rows; they have no keys, so their outputs are 0. As many again hold the
padding among the keys; they have no rows.

Sequences of all three kinds may also lie where they are, each row of the batch as three of them, if
its tokens are its first or its last places. Then nothing is copied.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Places(NamedTuple):
    """One side of a batch, rows or keys.

    - places: the place of each packed token among batch x length ones; None where they stay.
    - boundaries: int32, (sequences + 1).
    - tokens, longest: the number of packed tokens, and that of the longest sequence, which may be
      said too large.
    """

    places: torch.Tensor | None
    boundaries: torch.Tensor
    tokens: int
    longest: int


class Packing(NamedTuple):
    """Where rows and keys lie."""

    rows: Places
    keys: Places


class Flattening(NamedTuple):
    """Sizes and strides of a tensor (batch x length, heads, head_dim) in the memory of one (batch,
    heads, length, head_dim)."""

    sizes: tuple[int, int, int]
    strides: tuple[int, int, int]

    def is_contiguous(self) -> bool:
        _, heads, size = self.sizes
        return self.strides == (heads * size, size, 1)


def packing(keys: torch.Tensor, queries: int, rows_are_keys: bool, is_exact: bool) -> Packing:
    """Where the rows and the keys of a padded batch lie when they are packed.

    `keys` (batch, length) is False for padding. With `rows_are_keys` the rows are the same tokens;
    otherwise each sequence has `queries` rows, none of them padding. With `is_exact` only tokens
    are packed, and the call waits for the device.
    """
    batch, length = keys.shape
    rows = keys if rows_are_keys else keys.new_ones(batch, queries)
    if is_exact:
        found = _exact(keys)
        return Packing(found if rows_are_keys else _all(rows), found)
    empty = torch.zeros(batch, dtype=torch.int64, device=keys.device)
    counts, queried = keys.sum(1), rows.sum(1)
    behind = _rest(counts, length), _rest(queried, queries)
    return Packing(
        _whole(rows if rows_are_keys else None, torch.cat([queried, behind[1], empty]), queries),
        _whole(keys, torch.cat([counts, empty, behind[0]]), length),
    )


def in_place(exist: torch.Tensor) -> Packing | None:
    """All places where they are, for rows and keys that are the same tokens; None where a sequence
    has padding between its tokens or on both sides of them. The call waits for the device."""
    length = exist.shape[1]
    counts, at_start = exist.sum(1), exist[:, 0]
    none, rest = torch.zeros_like(counts), length - counts
    begins = torch.where(at_start, none, rest)[:, None]
    place = torch.arange(length, device=exist.device)
    if not torch.equal((place >= begins) & (place < begins + counts[:, None]), exist):
        return None

    def side(first: list[torch.Tensor], last: list[torch.Tensor]) -> Places:
        lengths = torch.where(at_start[:, None], torch.stack(first, 1), torch.stack(last, 1))
        return Places(None, _ends(lengths.flatten()), exist.numel(), length)

    return Packing(
        side([counts, rest, none], [rest, none, counts]),
        side([counts, none, rest], [none, rest, counts]),
    )


def flattening(tensor: torch.Tensor) -> Flattening | None:
    """How a tensor (batch, heads, length, head_dim) is flattened without a copy; None where its
    memory needs one."""
    batch, heads, length, size = tensor.shape
    of_batch, of_head, of_row, of_element = tensor.stride()
    if of_batch != length * of_row:
        return None
    return Flattening((batch * length, heads, size), (of_row, of_head, of_element))


def packed(tensor: torch.Tensor, places: Places, how: Flattening | None) -> torch.Tensor:
    """(tokens, heads, head_dim) of a tensor (batch, heads, length, head_dim)."""
    flat = tensor.transpose(1, 2).flatten(0, 1) if how is None else tensor.as_strided(*how)
    return flat.contiguous() if places.places is None else flat.index_select(0, places.places)


def unpacked(out: torch.Tensor, places: Places, batch: int, queries: int) -> torch.Tensor:
    """(batch, heads, queries, head_dim) of packed rows, which are contiguous; padding is 0."""
    _, heads, size = out.shape
    if places.places is not None:
        make = out.new_zeros if places.tokens < batch * queries else out.new_empty
        out = make(batch * queries, heads, size).index_copy_(0, places.places, out)
    row = heads * size
    return out.as_strided((batch, heads, queries, size), (queries * row, size, row, 1))


def _exact(exist: torch.Tensor) -> Places:
    counts = exist.sum(1)
    places = exist.flatten().nonzero().flatten()  # waits for the number of tokens
    return Places(places, _ends(counts), len(places), int(counts.max()))


def _all(rows: torch.Tensor) -> Places:
    return Places(None, _ends(rows.sum(1)), rows.numel(), rows.shape[1])


def _whole(exist: torch.Tensor | None, counts: torch.Tensor, length: int) -> Places:
    """All places, tokens first, in their order."""
    places = None
    if exist is not None:
        places = torch.argsort(exist.flatten(), descending=True, stable=True)
    tokens = length * (len(counts) // 3)
    return Places(places, _ends(counts), tokens, length)


def _rest(counts: torch.Tensor, length: int) -> torch.Tensor:
    """The lengths of as many sequences as there are counts, that have all other places of the
    batch, `length` at most each."""
    rest = length * len(counts) - counts.sum()
    number = torch.arange(len(counts), device=counts.device)
    return (rest - number * length).clamp(0, length)


def _ends(counts: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
