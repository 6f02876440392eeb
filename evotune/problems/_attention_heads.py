"""Heads of attention as parts of a case: a head of keys, with the heads of queries that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from evotune.problems.parts import Index
from evotune.trial import Value

Heads: TypeAlias = "tuple[tuple[int, int], ...]"
"""Pairs of a batch and a head of keys."""


def heads_touched(sizes: Mapping[str, int], touched: Sequence[tuple[str, int, int]]) -> Heads:
    """The heads that depend on these elements (see `HasParts.parts`); none where they are more than
    half of all heads."""
    found: dict[tuple[int, int], None] = {}
    for name, first, count in touched:
        rows, heads = ("seq_len_q", "heads") if name == "q" else ("seq_len_k", "kv_heads")
        elements = sizes[rows] * sizes["head_dim"]
        for number in range(first // elements, (first + count - 1) // elements + 1):
            batch, head = divmod(number, sizes[heads])
            found[batch, head * sizes["kv_heads"] // sizes[heads]] = None
    return tuple(found) if 2 * len(found) <= sizes["batch"] * sizes["kv_heads"] else ()


def heads_as_batch(
    sizes: Mapping[str, int], heads: Heads
) -> tuple[dict[str, Value], Mapping[str, Sequence[Index]]]:
    """The sizes of a case whose batch is these heads, and where they lie in each tensor."""
    group = sizes["heads"] // sizes["kv_heads"]
    found: dict[str, Value] = {"batch": len(heads), "heads": group, "kv_heads": 1}
    found |= {name: sizes[name] for name in ("seq_len_q", "seq_len_k")}
    queries = [(batch, slice(head * group, (head + 1) * group)) for batch, head in heads]
    keys = [(batch, slice(head, head + 1)) for batch, head in heads]
    return found, {"q": queries, "k": keys, "v": keys, "out": queries}
