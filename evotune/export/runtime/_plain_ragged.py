"""Attention over sequences of different lengths in plain PyTorch: for calls that no kernel serves.

SDPA computes one sequence after the other, which needs the lengths in Python: on a GPU the call
waits for them. While a CUDA graph is captured, a call cannot wait. Then the sequences are padded to
the maxima and a mask hides the padding, which is more work but needs no wait.

Causal is aligned to the bottom right: a sequence's last row sees all of its keys. A row that sees
no key is 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ._attention_package import sdpa


def plain_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """q (rows, heads, head_dim), k and v (keys, kv_heads, …), boundaries (sequences + 1) of any
    integer type; the result has a row for each of q. Rows after the last boundary are 0. Raises
    ValueError, one line, if the shapes of the tensors do not agree, or the boundaries do not match
    them."""
    _require(q.dim() == k.dim() == v.dim() == 3, "q, k and v must have three dimensions", q, k, v)
    _require(k.shape[:2] == v.shape[:2], "k and v must have the same rows and heads", q, k, v)
    _require_heads(q, k)
    _require_types(("q", "k", "v"), (q, k, v))
    _require(
        cu_seqlens_q.dim() == 1 and cu_seqlens_q.shape == cu_seqlens_k.shape and len(cu_seqlens_q),
        "cu_seqlens_q and cu_seqlens_k must have one dimension, and one number more than there "
        "are sequences", cu_seqlens_q, cu_seqlens_k,
    )  # fmt: skip
    _require_integers(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    if _is_capturing(q):
        return _padded_varlen(
            *(q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k)),
            causal=causal,
            scale=scale,
        )
    ends_q = _boundaries("cu_seqlens_q", cu_seqlens_q, q)
    ends_k = _boundaries("cu_seqlens_k", cu_seqlens_k, k)
    parts = []
    for number, first in enumerate(ends_q[:-1]):
        keys = slice(ends_k[number], ends_k[number + 1])
        parts.append(_attended(q[first : ends_q[number + 1]], k[keys], v[keys], causal, scale))
    parts.append(q.new_zeros((len(q) - ends_q[-1], q.shape[1], v.shape[2])))
    return torch.cat(parts)


def plain_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor,
    page_table: torch.Tensor,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """q (sequences, queries, heads, head_dim), k_cache and v_cache (pages, page_size, kv_heads, …),
    cache_seqlens (sequences), page_table (sequences, most pages). Raises ValueError, one line, if
    their shapes do not agree. Slots and entries of the table beyond a length are not read."""
    four = q.dim() == k_cache.dim() == v_cache.dim() == 4
    _require(four, "q, k_cache and v_cache must have four dimensions", q, k_cache, v_cache)
    same = k_cache.shape[:3] == v_cache.shape[:3]
    _require(same, "k_cache and v_cache must have the same pages and heads", k_cache, v_cache)
    _require_heads(q, k_cache)
    _require_types(("q", "k_cache", "v_cache"), (q, k_cache, v_cache))
    fit = cache_seqlens.shape == q.shape[:1] and page_table.dim() == 2
    _require(
        fit and len(page_table) == len(q),
        "cache_seqlens and page_table must have a row for each sequence", cache_seqlens, page_table,
    )  # fmt: skip
    _require_integers(cache_seqlens=cache_seqlens, page_table=page_table)
    room = page_table.shape[1] * k_cache.shape[1]
    if _is_capturing(q):
        most = room if max_seqlen_k is None else min(room, int(max_seqlen_k))
        return _padded_paged(
            *(q, k_cache, v_cache, cache_seqlens, page_table, most), causal=causal, scale=scale
        )
    parts = []
    rows = zip(cache_seqlens.tolist(), page_table.tolist(), strict=True)
    for number, (length, row) in enumerate(rows):
        if not 0 <= length <= room:
            raise ValueError(
                f"cache_seqlens must lie between 0 and {room}, for which page_table has room; of "
                f"sequence {number} it is {length}"
            )
        pages = row[: -(-length // k_cache.shape[1])]
        for page in pages:
            if not 0 <= page < len(k_cache):
                raise ValueError(
                    f"page_table of sequence {number} names page {page}, and k_cache has "
                    f"{len(k_cache)} pages"
                )
        chosen = torch.tensor(pages, dtype=torch.long, device=q.device)
        keys, values = (each[chosen].flatten(0, 1)[:length] for each in (k_cache, v_cache))
        parts.append(_attended(q[number], keys, values, causal, scale))
    return torch.stack(parts) if parts else q.new_zeros((*q.shape[:3], v_cache.shape[3]))


def _attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
) -> torch.Tensor:
    """One sequence, rows first."""
    rows, keys = len(q), len(k)
    blind = max(0, rows - keys) if causal else 0 if keys else rows  # rows that see no key
    zeros = q.new_zeros((blind, q.shape[1], v.shape[2]))
    if blind == rows:
        return zeros
    rows -= blind
    mask = None
    if causal and 1 < rows < keys:
        mask = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows)
    queries, keys_first, values = (each.transpose(0, 1)[None] for each in (q[blind:], k, v))
    found = sdpa(
        *(queries, keys_first, values, mask, 0.0, causal and rows == keys),
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    seen = found[0].transpose(0, 1)
    return torch.cat([zeros, seen]) if blind else seen


def _padded_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ends_q: torch.Tensor,
    ends_k: torch.Tensor,
    most_q: int,
    most_k: int,
    *,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    out = q.new_zeros((len(q) + 1, q.shape[1], v.shape[2]))  # the last row takes the padding
    if len(q) and len(k) and most_q > 0 and most_k > 0:
        at_q, inside_q = _places(ends_q, most_q)
        at_k, inside_k = _places(ends_k, most_k)
        keys, values = (each[at_k.clamp(max=len(k) - 1)] for each in (k, v))
        lengths = ends_q.diff(), ends_k.diff()
        found = _masked(
            q[at_q.clamp(max=len(q) - 1)], keys, values, inside_k, lengths, causal, scale
        )
        target = torch.where(inside_q, at_q, len(q))
        out = out.index_put((target.flatten(),), found.flatten(0, 1))
    return out[:-1]


def _places(ends: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(sequences, most) each: the row of each place of a padded sequence, and whether it has
    one."""
    number = torch.arange(most, device=ends.device)
    at = ends[:-1, None].long() + number
    return at, at < ends[1:, None]


def _padded_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor,
    most: int,
    *,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    count = -(-most // k_cache.shape[1])
    pages = table[:, :count].long().clamp(0, len(k_cache) - 1)
    keys, values = (each[pages].flatten(1, 2) for each in (k_cache, v_cache))
    inside = torch.arange(keys.shape[1], device=q.device) < lengths[:, None]
    rows = torch.full_like(lengths, q.shape[1])
    return _masked(q, keys, values, inside, (rows, lengths), causal, scale)


def _masked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    inside: torch.Tensor,
    lengths: tuple[torch.Tensor, torch.Tensor],
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Padded sequences, (sequences, rows or keys, heads, head_dim); `inside` says which keys exist.
    Others may be NaN, which would survive a product with 0."""
    k, v = (torch.where(inside[:, :, None, None], each, 0.0) for each in (k, v))
    mask = inside[:, None, None, :].expand(-1, 1, q.shape[1], -1)
    if causal:
        row = torch.arange(q.shape[1], device=q.device)[:, None]
        key = torch.arange(k.shape[1], device=q.device)
        seen = key <= row + (lengths[1] - lengths[0])[:, None, None]
        mask = mask & seen[:, None]
    found = sdpa(
        *(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask),
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return torch.where(mask.any(-1, keepdim=True), found, 0.0).transpose(1, 2)


def _boundaries(name: str, ends: torch.Tensor, tensor: torch.Tensor) -> list[int]:
    found: list[int] = ends.tolist()
    if found[0] != 0 or found[-1] > len(tensor) or any(a > b for a, b in itertools.pairwise(found)):
        raise ValueError(
            f"{name} must begin with 0, never decrease, and end at or below the number of rows, "
            f"{len(tensor)}"
        )
    return found


def _require_heads(q: torch.Tensor, k: torch.Tensor) -> None:
    heads, kv_heads = q.shape[-2], k.shape[-2]
    fit = kv_heads and not heads % kv_heads and q.shape[-1] == k.shape[-1]
    words = "the heads of k must divide those of q, and the sizes of heads must agree"
    _require(bool(fit), words, q, k)


def _require_types(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    found = {tensor.dtype for tensor in tensors}
    if len(found) > 1 or not tensors[0].is_floating_point():
        got = ", ".join(str(tensor.dtype) for tensor in tensors)
        *first, last = names
        words = f"{', '.join(first)} and {last} must have one floating-point type"
        raise ValueError(f"{words}, got {got}")


def _require_integers(**tables: torch.Tensor) -> None:
    for name, table in tables.items():
        if table.is_floating_point() or table.is_complex():
            raise ValueError(f"{name} must hold integers, got {table.dtype}")


def _require(holds: object, words: str, *tensors: torch.Tensor) -> None:
    if not holds:
        found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(f"{words}; the shapes are {found}")


def _is_capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
