"""Whether lengths and tables fit the tensors that they belong to.

A kernel reads memory where they point. On a CPU each call's are looked at; on a GPU only on demand,
and there the GPU itself asserts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ._loaded_kernels import Refused
from ._named_kernels import Given, there

Conditions = Iterator[tuple[torch.Tensor, str]]


def refusal_of_varlen(symbols: Mapping[str, Any], tensors: Given) -> Refused | None:
    """A miss where the boundaries are none that the kernels take; the tensors are on a CPU."""
    return _first(_conditions_of_varlen(symbols, there(tensors)))


def refusal_of_paged(symbols: Mapping[str, Any], tensors: Given) -> Refused | None:
    """The same for lengths and pages."""
    return _first(_conditions_of_paged(symbols, there(tensors)))


def asserted(symbols: Mapping[str, Any], is_paged: bool, tensors: Given) -> Refused | None:
    """Has the GPU assert all conditions before the kernel starts. The answer is None: one that does
    not hold ends in a CUDA error at the next synchronisation."""
    conditions = _conditions_of_paged if is_paged else _conditions_of_varlen
    for holds, words in conditions(symbols, there(tensors)):
        torch._assert_async(holds, words)
    return None


def _first(conditions: Conditions) -> Refused | None:
    for holds, words in conditions:
        if not holds:
            return Refused("values", words)
    return None


def _conditions_of_varlen(
    symbols: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Conditions:
    """Scalars that must be true, with what is wrong where they are not."""
    for side, ends in zip("qk", tensors[3:5], strict=True):
        tokens, longest = symbols[f"tokens_{side}"], symbols[f"longest_{side}"]
        name = f"cu_seqlens_{side}"
        yield (
            (ends[0] == 0) & (ends[-1] == tokens),
            f"{name} must begin with 0 and end with {tokens}, the rows of {side}",
        )
        lengths = ends.long().diff()  # 32 bits would hide a difference that overflows
        yield (
            ((lengths >= 0) & (lengths <= longest)).all(),
            f"{name} must not decrease, nor increase by more than max_seqlen_{side} ({longest})",
        )


def _conditions_of_paged(symbols: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Conditions:
    lengths, table = tensors[3].long(), tensors[4]
    least, most, pages = symbols["queries"], symbols["longest"], symbols["pages"]
    yield (
        ((lengths >= least) & (lengths <= most)).all(),
        f"cache_seqlens must lie between {least}, the rows of a sequence, and {most}",
    )
    used = torch.arange(table.shape[1], device=table.device) * symbols["page_size"]
    wrong = ((table < 0) | (table >= pages)) & (used < lengths[:, None])
    yield ~wrong.any(), f"page_table names a page that is none of the {pages} in k_cache"
