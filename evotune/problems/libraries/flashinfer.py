"""FlashInfer. Its wrappers plan once for given lengths, and run many times; only the run is timed.

A dense case is a batch of sequences of one length. Masks are aligned to the bottom right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from evotune.problems.attention_features import Features
from evotune.problems.libraries import UnusableBaseline
from evotune.problems.libraries.calling import (
    demand_arch,
    demand_half,
    rows_before_heads,
    usable_pages,
)
from evotune.problems.problem import Case, Tensors

_SIZES = ((64, 64), (128, 128), (256, 256), (192, 128))
_WORKSPACE_BYTES = 128 << 20  # as its documentation advises
_ARCHITECTURES = range(8, 13)


def prepared(name: str, library: ModuleType, case: Case, inputs: Tensors) -> Callable[[], Tensors]:
    s: Any = case.symbols
    demand_half(case)
    demand_arch(inputs["q"].device, _ARCHITECTURES)
    sizes = (s["head_dim"], s.get("value_dim", s["head_dim"]))
    if sizes not in _SIZES:
        raise UnusableBaseline(f"it has no head sizes {sizes[0]} and {sizes[1]}")
    workspace = _workspace(inputs["q"].device)
    options: dict[str, Any] = {"sm_scale": float(s["softmax_scale"])}
    options |= {"q_data_type": inputs["q"].dtype, "kv_data_type": inputs["q"].dtype}
    if "page_table" in inputs:
        return _paged(library, case, inputs, workspace, options)
    if "cu_seqlens_q" in inputs:
        q, k, v = (inputs[each].contiguous() for each in "qkv")
        rows, keys = inputs["cu_seqlens_q"], inputs["cu_seqlens_k"]
        run = _ragged(library, case, (rows, keys), workspace, options)
        return lambda: {"out": run(q, k, v)}
    options |= _feature_options(case)
    whole = rows_before_heads(inputs)
    ends = [
        torch.arange(each.shape[0] + 1, dtype=torch.int32, device=each.device) * each.shape[1]
        for each in whole[:2]
    ]
    run = _ragged(library, case, (ends[0], ends[1]), workspace, options)
    q, k, v = (each.flatten(0, 1) for each in whole)
    shape = (s["batch"], s["seq_len_q"], s["heads"], s["value_dim"])
    return lambda: {"out": run(q, k, v).view(shape).transpose(1, 2)}


@functools.cache
def _workspace(device: torch.device) -> torch.Tensor:
    """Memory that all wrappers share: each uses it only while it runs."""
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _feature_options(case: Case) -> dict[str, Any]:
    s, features = case.symbols, Features.of(case)
    for name in ("alibi", "score_mod", "sinks"):
        if getattr(features, name):
            raise UnusableBaseline(f"its wrapper does not take {name}")
    if features.lse:
        raise UnusableBaseline("it returns logarithms to the base 2 only")
    if features.window_right >= 0:
        raise UnusableBaseline("it has no window to the right")
    aligned = s["causal"] or features.has_window
    if aligned and s["seq_len_q"] != s["seq_len_k"] and not features.bottom_right:
        raise UnusableBaseline("it aligns masks to the bottom right")
    found: dict[str, Any] = {}
    if features.window_left >= 0:
        found["window_left"] = features.window_left
    return found | ({"logits_soft_cap": features.softcap} if features.softcap else {})


def _ragged(
    library: ModuleType,
    case: Case,
    ends: tuple[torch.Tensor, torch.Tensor],
    workspace: torch.Tensor,
    options: dict[str, Any],
) -> Callable[..., torch.Tensor]:
    s: Any = case.symbols
    wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        *ends,
        s["heads"],
        s["kv_heads"],
        s["head_dim"],
        head_dim_vo=s.get("value_dim", s["head_dim"]),
        causal=s["causal"],
        **options,
    )
    run: Callable[..., torch.Tensor] = wrapper.run
    return run


def _paged(
    library: ModuleType,
    case: Case,
    inputs: Tensors,
    workspace: torch.Tensor,
    options: dict[str, Any],
) -> Callable[[], Tensors]:
    s: Any = case.symbols
    device, lengths = inputs["q"].device, inputs["seq_lens"]
    table, size = usable_pages(case, inputs), s["page_size"]
    counts = (lengths + size - 1) // size
    used = torch.arange(table.shape[1], device=device) < counts[:, None]
    ends = torch.zeros(s["sequences"] + 1, dtype=torch.int32, device=device)
    ends[1:] = counts.cumsum(0)
    pages = (ends, table[used], lengths - (counts - 1).clamp(min=0) * size)
    sizes = (s["heads"], s["kv_heads"], s["head_dim"], size)
    cache, q = (inputs["k_pages"], inputs["v_pages"]), inputs["q"].flatten(0, 1)
    if s["queries"] == 1:
        # One query sees all keys, causal or not. Tensor cores pay off if several heads share keys.
        grouped = s["heads"] // s["kv_heads"] >= 4
        decode = library.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=grouped
        )
        decode.plan(*pages, *sizes, **options)
        return lambda: {"out": decode.run(q, cache).view(inputs["q"].shape)}
    rows = torch.arange(s["sequences"] + 1, dtype=torch.int32, device=device) * s["queries"]
    prefill = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    prefill.plan(rows, *pages, *sizes, causal=s["causal"], **options)
    return lambda: {"out": prefill.run(q, cache).view(inputs["q"].shape)}
