"""FlexAttention, compiled: windows and masks as a block mask, the rest as a score modification."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch._dynamo import config as dynamo

from evotune.problems.attention_features import Features, parsed
from evotune.problems.attention_scores import value_of
from evotune.problems.libraries import UnusableBaseline
from evotune.problems.problem import Case, Tensors
from evotune.space.language.nodes import Node
from evotune.trial import Value

_CASES = 1 << 12
"""So many cases may compile: beyond its usual limit of 8, torch would run uncompiled code."""
_Mod = Callable[..., torch.Tensor]


def prepared(name: str, library: ModuleType, case: Case, inputs: Tensors) -> Callable[[], Tensors]:
    if "cu_seqlens_q" in inputs or "page_table" in inputs:
        raise UnusableBaseline("evotune calls it for dense attention only")
    wants_lse = Features.of(case).lse
    symbols = tuple(sorted(case.symbols.items(), key=lambda item: item[0]))
    attend, block_mask = _compiled(library, symbols, inputs["q"].device)
    q, k, v = (inputs[each] for each in "qkv")
    of_heads = (inputs.get("alibi_slopes"), inputs.get("sinks"))

    def call() -> Tensors:
        out, lse = attend(q, k, v, block_mask, of_heads)
        return {"out": out} | ({"lse": lse} if wants_lse else {})

    limits: dict[str, Any] = {"recompile_limit": _CASES, "accumulated_recompile_limit": _CASES}
    with dynamo.patch(fail_on_recompile_limit_hit=True, **limits):
        call()
    return call


@functools.lru_cache(maxsize=64)
def _compiled(
    library: ModuleType, symbols: tuple[tuple[str, Value], ...], device: torch.device
) -> tuple[Callable[..., Any], Any]:
    """The compiled function of a case, which serves all its inputs, and its block mask."""
    case = Case("", dict(symbols))
    attend = torch.compile(_attention(library, case), fullgraph=True, dynamic=False)
    sees = _visible(case)
    if sees is None:
        return attend, None
    lengths = (int(case.symbols["seq_len_q"]), int(case.symbols["seq_len_k"]))
    return attend, library.create_block_mask(sees, None, None, *lengths, device)


def _attention(library: ModuleType, case: Case) -> Callable[..., Any]:
    features, s = Features.of(case), case.symbols
    node = parsed(features.score_mod) if features.score_mod else None
    options: dict[str, Any] = {"scale": float(s["softmax_scale"])}
    options["enable_gqa"] = s["heads"] != s["kv_heads"]
    wants_lse = features.lse or features.sinks
    if wants_lse:
        options["return_aux"] = library.AuxRequest(lse=True)

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        block_mask: Any,
        of_heads: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        slopes, sinks = of_heads
        score_mod = _score_mod(features, _shift(case), node, slopes)
        found = library.flex_attention(
            q, k, v, score_mod=score_mod, block_mask=block_mask, **options
        )
        if not wants_lse:
            return found, None
        out, lse = found[0], found[1].lse
        if sinks is not None:  # a further key whose value is 0
            each = sinks[None, :, None]
            out = (out * torch.sigmoid(lse - each)[..., None]).to(out.dtype)
            lse = torch.logaddexp(lse, each)
        return out, lse

    return attend


def _visible(case: Case) -> _Mod | None:
    """Which keys a row sees; None if it sees all."""
    features, s = Features.of(case), case.symbols
    left, right = features.window_left, 0 if s["causal"] else features.window_right
    shift = _shift(case)
    if left < 0 and right < 0:
        return None

    def sees(batch: Any, head: Any, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        own = row + shift
        if left < 0:
            return key <= own + right
        if right < 0:
            return key >= own - left
        return (key <= own + right) & (key >= own - left)

    return sees


def _shift(case: Case) -> int:
    """What is added to a row's number to get its own key's."""
    lengths = int(case.symbols["seq_len_k"]) - int(case.symbols["seq_len_q"])
    return lengths if Features.of(case).bottom_right else 0


def _score_mod(
    features: Features, shift: int, node: Node | None, slopes: torch.Tensor | None
) -> _Mod | None:
    """Soft cap, ALiBi and a space's expression, in this order; None without them."""
    if not (features.softcap or features.alibi or features.score_mod):
        return None
    cap = features.softcap

    def modified(
        score: torch.Tensor, batch: Any, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        if cap:
            score = cap * torch.tanh(score / cap)
        if slopes is not None:
            score = score - slopes[head] * (row + shift - key).abs()
        if node is not None:
            names = {"score": score, "head": head, "row": row, "column": key}
            score = torch.as_tensor(value_of(node, names)) + torch.zeros_like(score)
        return score

    return modified
