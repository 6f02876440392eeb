"""An exported package whose kernels compute attention over sequences of different lengths.

A kernel serves the cases that it was measured to win; PyTorch serves all others. A case follows
from the shapes, the maxima and the options of a call. The values of lengths and tables are checked
on a CPU only. On a GPU only the kernel reads them, so that a call waits for nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ._certificate import Contents
from ._loaded_kernels import LoadedKernels, Refused
from ._missed import Misses
from ._named_kernels import Examine, Given, NamedKernels, there
from ._plain_ragged import plain_paged, plain_varlen

BEFORE = "PyTorch"
_MOST_SLOTS = 1 << 31


class Call(NamedTuple):
    """How callers name the inputs of a problem, in their order, and how its kernels do."""

    said: tuple[str, ...]
    inputs: tuple[str, ...]
    sizes: tuple[str, ...]
    """The names of the sizes that a shape in a space file has."""


CALLS: Mapping[str, Call] = {
    "attention_varlen": Call(
        ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"),
        ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"),
        (
            *("sequences", "heads", "kv_heads", "tokens_q", "tokens_k", "longest_q", "longest_k"),
            "head_dim",
        ),
    ),
    "attention_paged": Call(
        ("q", "k_cache", "v_cache", "cache_seqlens", "page_table"),
        ("q", "k_pages", "v_pages", "seq_lens", "page_table"),
        ("sequences", "queries", "heads", "kv_heads", "longest", "page_size", "head_dim"),
    ),
}


class RaggedKernels(NamedKernels):
    """Finds the case of a call, and checks its tables.

    - asserts_tables: whether a GPU asserts that lengths and tables fit the tensors.
    """

    anywhere = False

    def __init__(self, contents: Contents, kernels: LoadedKernels, misses: Misses) -> None:
        super().__init__(contents, kernels, misses)
        self._problem: str = contents.dispatch["problem"]["name"]
        self.is_paged = self._problem == "attention_paged"
        self.said, self.inputs, self._sizes = CALLS[self._problem]
        self.own_fallback = plain_paged if self.is_paged else plain_varlen
        self.fallback = self.own_fallback
        self.asserts_tables = False

    def symbols(self, tensors: Given, options: Mapping[str, Any]) -> dict[str, Any]:
        find = _paged_sizes if self.is_paged else _varlen_sizes
        sizes = find([tuple(map(int, tensor.shape)) for tensor in there(tensors)], options)
        if min(sizes.values()) < 1 or sizes["heads"] % sizes["kv_heads"]:
            raise ValueError(_shapes_in_words(self.said, there(tensors)))
        usual = 1.0 / math.sqrt(sizes["head_dim"])
        scale = options.get("scale")
        if scale is None or math.isclose(scale, usual):
            scale = usual
        if not math.isfinite(scale):
            raise ValueError(f"softmax_scale must be a finite number, got {scale}")
        named = {"causal": bool(options.get("causal", False)), "softmax_scale": float(scale)}
        return {**sizes, **named, "dtype": str(self.dtype).removeprefix("torch.")}

    def examining(self, symbols: Mapping[str, Any], tensors: Given) -> Examine | None:
        look = refusal_of_paged if self.is_paged else refusal_of_varlen
        if there(tensors)[0].is_cpu:
            return functools.partial(look, symbols)
        return functools.partial(asserted, symbols, self.is_paged) if self.asserts_tables else None

    def outside(self, symbols: Mapping[str, Any], kind: str) -> Refused:
        shape: dict[str, Any] = {name: symbols[name] for name in self._sizes}
        words = ", ".join(f"{name} {size}" for name, size in shape.items())
        if symbols["softmax_scale"] != 1.0 / math.sqrt(symbols["head_dim"]):
            shape["scale"] = symbols["softmax_scale"]
        variant = {"causal": symbols["causal"]}
        case = {"shape": shape, "variant": variant, "dtype": symbols["dtype"]}
        return Refused(kind, f"{words}, causal {symbols['causal']}", case)

    def promised(self, tensors: Given, options: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        q, _, v, *_ = there(tensors)
        return (q.new_empty((*q.shape[:-1], v.shape[-1])),)


def _varlen_sizes(shapes: Sequence[tuple[int, ...]], options: Mapping[str, Any]) -> dict[str, int]:
    q, k, v, cu_q, cu_k = shapes
    if not (len(q) == len(k) == 3 and k == v and len(cu_q) == 1 and cu_q == cu_k):
        raise ValueError(
            "q, k and v must be (rows, heads, size), k and v alike, and both cu_seqlens "
            f"(sequences + 1); got {', '.join(map(str, shapes))}"
        )
    if q[2] != k[2]:
        raise ValueError(f"q and k must have one head size, got {q[2]} and {k[2]}")
    # A maximum may be more than there is.
    return {
        **{"sequences": cu_q[0] - 1, "heads": q[1], "kv_heads": k[1], "head_dim": q[2]},
        **{"tokens_q": q[0], "tokens_k": k[0]},
        "longest_q": min(q[0], int(options["max_seqlen_q"])),
        "longest_k": min(k[0], int(options["max_seqlen_k"])),
    }


def _paged_sizes(shapes: Sequence[tuple[int, ...]], options: Mapping[str, Any]) -> dict[str, int]:
    q, k, v, lengths, table = shapes
    dimensions = (len(q), len(k), len(lengths), len(table))
    if dimensions != (4, 4, 1, 2) or k != v or not q[0] == lengths[0] == table[0]:
        raise ValueError(
            "q must be (sequences, rows, heads, size), k_cache and v_cache (pages, page, heads, "
            "size) alike, cache_seqlens (sequences), page_table (sequences, pages of one); got "
            f"{', '.join(map(str, shapes))}"
        )
    if q[3] != k[3]:
        raise ValueError(f"q and k_cache must have one head size, got {q[3]} and {k[3]}")
    if k[0] * k[1] >= _MOST_SLOTS:
        raise ValueError(f"k_cache has {k[0] * k[1]} slots, the kernels take less than 2^31")
    room = table[1] * k[1]
    given = options.get("max_seqlen_k")
    return {
        **{"sequences": q[0], "queries": q[1], "heads": q[2], "kv_heads": k[2], "head_dim": q[3]},
        **{"pages": k[0], "page_size": k[1], "most_pages": table[1]},
        "longest": room if given is None else min(room, int(given)),
    }


def _shapes_in_words(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> str:
    found = zip(names, tensors, strict=True)
    return f"the tensors are {', '.join(f'{name} {tuple(t.shape)}' for name, t in found)}"


# Whether lengths and tables fit the tensors that they belong to.
#
# A kernel reads memory where they point. On a CPU each call's are looked at; on a GPU only on
# demand, and there the GPU itself asserts them.
Conditions = Iterator[tuple[torch.Tensor, str]]


def refusal_of_varlen(symbols: Mapping[str, Any], tensors: Given) -> Refused | None:
    """A miss if the kernels do not take these boundaries; the tensors are on a CPU."""
    return _first(_conditions_of_varlen(symbols, there(tensors)))


def refusal_of_paged(symbols: Mapping[str, Any], tensors: Given) -> Refused | None:
    """A miss if the kernels do not take these lengths and pages; the tensors are on a CPU."""
    return _first(_conditions_of_paged(symbols, there(tensors)))


def asserted(symbols: Mapping[str, Any], is_paged: bool, tensors: Given) -> Refused | None:
    """Has the GPU assert all conditions before the kernel starts. Returns None; a condition that
    does not hold causes a CUDA error at the next synchronisation."""
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
    """Scalars that must be true, each with what is wrong if it is not."""
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
