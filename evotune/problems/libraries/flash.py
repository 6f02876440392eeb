"""FlashAttention 2, 3 and 4. All align causal masks and windows to the bottom right."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from evotune.problems.attention_features import Features
from evotune.problems.libraries import UnusableBaseline
from evotune.problems.libraries.calling import (
    demand_arch,
    demand_half,
    demand_sizes,
    rows_before_heads,
    usable_pages,
)
from evotune.problems.problem import Case, Tensors

_ARCHITECTURES = {"fa2": range(8, 13), "fa3": range(8, 10), "fa4": range(8, 13)}
_MOST_HEAD = 256
_PAGES_OF_FA2 = 256
"""FlashAttention 2 takes pages whose number of keys is a multiple of this."""


def prepared(name: str, library: ModuleType, case: Case, inputs: Tensors) -> Callable[[], Tensors]:
    demand_half(case)
    demand_arch(inputs["q"].device, _ARCHITECTURES[name])
    demand_sizes(case, 8, _MOST_HEAD)
    options = {
        "softmax_scale": float(case.symbols["softmax_scale"]),
        "causal": bool(case.symbols["causal"]),
    }
    if "cu_seqlens_q" in inputs:
        return _varlen(library, case, inputs, options)
    if "page_table" in inputs:
        return _paged(name, library, case, inputs, options)
    return _dense(name, library, case, inputs, options)


def _dense(
    name: str, library: ModuleType, case: Case, inputs: Tensors, options: dict[str, Any]
) -> Callable[[], Tensors]:
    features = Features.of(case)
    options |= _feature_options(name, features, case, inputs)
    q, k, v = rows_before_heads(inputs)
    function = library.flash_attn_func

    def call() -> Tensors:
        found = function(q, k, v, **options)
        out = found[0] if isinstance(found, tuple) else found
        outputs = {"out": out.transpose(1, 2)}
        return outputs | ({"lse": found[1]} if features.lse else {})

    return call


def _feature_options(name: str, features: Features, case: Case, inputs: Tensors) -> dict[str, Any]:
    """The additional arguments of `flash_attn_func`."""
    same_lengths = case.symbols["seq_len_q"] == case.symbols["seq_len_k"]
    aligned = case.symbols["causal"] or features.has_window or features.alibi
    if aligned and not same_lengths and not features.bottom_right:
        raise UnusableBaseline("it aligns masks to the bottom right")
    if features.score_mod:
        raise UnusableBaseline("it does not take a space's score modification")
    if name == "fa2" and case.symbols["head_dim"] != case.symbols["value_dim"]:
        raise UnusableBaseline("it needs values of the keys' size")
    found: dict[str, Any] = {}
    if features.has_window:
        none = None if name == "fa4" else -1
        left, right = features.window_left, features.window_right
        right = 0 if case.symbols["causal"] else right
        found["window_size"] = tuple(none if size < 0 else size for size in (left, right))
    if features.softcap:
        found["softcap"] = features.softcap
    if features.alibi:
        if name != "fa2":
            raise UnusableBaseline("it has no ALiBi")
        found["alibi_slopes"] = inputs["alibi_slopes"]
    if features.sinks:
        found["learnable_sink"] = _sinks(name, inputs["sinks"])
    if features.lse:
        found["return_lse" if name == "fa4" else "return_attn_probs"] = True
    return found


def _sinks(name: str, sinks: torch.Tensor) -> torch.Tensor:
    if name != "fa4":
        raise UnusableBaseline("it has no sinks")
    found = sinks.bfloat16()
    if not torch.equal(found.to(sinks.dtype), sinks):
        raise UnusableBaseline("it takes sinks in bfloat16, which cannot hold these")
    return found


def _varlen(
    library: ModuleType, case: Case, inputs: Tensors, options: dict[str, Any]
) -> Callable[[], Tensors]:
    function = library.flash_attn_varlen_func
    tables = {name: inputs[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    longest = {f"max_seqlen_{side}": int(case.symbols[f"longest_{side}"]) for side in "qk"}
    q, k, v = (inputs[name].contiguous() for name in "qkv")
    return lambda: {"out": _first(function(q, k, v, **tables, **longest, **options))}


def _paged(
    name: str, library: ModuleType, case: Case, inputs: Tensors, options: dict[str, Any]
) -> Callable[[], Tensors]:
    table, lengths = usable_pages(case, inputs), inputs["seq_lens"]
    q, k, v = inputs["q"], inputs["k_pages"], inputs["v_pages"]
    if name == "fa4":
        varlen = library.flash_attn_varlen_func
        options |= {"page_table": table, "seqused_k": lengths}
        return lambda: {"out": _first(varlen(q, k, v, **options))}
    if name == "fa2" and int(case.symbols["page_size"]) % _PAGES_OF_FA2:
        raise UnusableBaseline(f"it needs pages of a multiple of {_PAGES_OF_FA2} keys")
    function = library.flash_attn_with_kvcache
    options |= {"cache_seqlens": lengths, "block_table" if name == "fa2" else "page_table": table}
    return lambda: {"out": _first(function(q, k, v, **options))}


def _first(found: Any) -> torch.Tensor:
    out: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return out
