"""Registers the package with transformers, which need not be installed otherwise.

A model hands its attention a mask of all scores, also where the mask only says "causal", a sliding
window, or which tokens are padding. So the function that makes masks here notes on the mask what it
says (`_Said`), and attention reads the note. A model that changes a mask makes another tensor,
without the note, and gets SDPA with that mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ._asked_features import NONE, Asked
from ._attention_package import Call
from ._feature_calls import FeatureCalls
from ._tracing import is_exporting

_NOTE = "_evotune_said_1"  # another number for another agreement between packages


class _Said(NamedTuple):
    """All that a causal mask says: each row's own key is the last one of the last row, and so on
    before it.

    - `window_left`: of a sliding window, -1 without one.
    - `padding`: (batch, keys), False for keys that are padding; None where none is.
    """

    window_left: int
    padding: torch.Tensor | None


def as_packed(call: Call, padding: torch.Tensor) -> torch.Tensor | None:
    """The output of a call whose keys `padding` (batch, keys) hides where it is False, by a kernel
    for packed sequences; None where there is none. Packages of attention have no such kernel yet:
    this is the place for one."""
    return None


def register(
    name: str, attempt: Callable[..., torch.Tensor | None], features: FeatureCalls
) -> None:
    """Makes `attn_implementation=name` valid. `attempt` serves a call, or returns None: then
    transformers' own `sdpa` implementation does, with the arguments that the model gave. It knows
    neither soft caps nor sinks: what no kernel serves of these, plain PyTorch does.

    ImportError where transformers is missing or too old.
    """
    from transformers import AttentionInterface, AttentionMaskInterface  # type: ignore[import-not-found]
    from transformers.integrations.sdpa_attention import (  # type: ignore[import-not-found]
        sdpa_attention_forward,
    )
    from transformers.masking_utils import sdpa_mask  # type: ignore[import-not-found]

    def forward(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """The output as (batch, length, heads, head size), and no weights."""
        out = None
        if others.get("position_bias") is None and not others.get("output_attentions", False):
            causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            grouped = getattr(module, "num_key_value_groups", 1) > 1
            causal = bool(query.shape[2] > 1 and causal)
            call = Call(query, key, value, causal, scaling, grouped)
            out = _served(call, attention_mask, dropout, others, attempt, features)
        if out is not None:
            return out.transpose(1, 2).contiguous(), None
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **others,
        )
        return found

    def mask(*sizes: Any, **named: Any) -> torch.Tensor | None:
        """The mask for SDPA; None where `is_causal`, or no mask at all, says the same.

        transformers makes a mask of all ones while a graph is captured or compiled, since it
        cannot look into a padding mask then. Where there is no padding mask, nothing need be
        looked at.
        """
        if not sizes and _says_nothing(named):
            return None
        found: torch.Tensor | None = sdpa_mask(*sizes, **named)
        if found is not None and not sizes and (said := _said(named)) is not None:
            setattr(found, _NOTE, said)
        return found

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, mask)


def _served(
    call: Call,
    mask: torch.Tensor | None,
    dropout: float,
    others: Mapping[str, Any],
    attempt: Callable[..., torch.Tensor | None],
    features: FeatureCalls,
) -> torch.Tensor | None:
    """The output, or None for transformers' own implementation. `call.is_causal` counts where there
    is no mask."""
    softcap, sinks = float(others.get("softcap") or 0.0), others.get("s_aux")
    own = Asked(softcap=softcap, sinks=sinks is not None)
    said = None if mask is None or torch.compiler.is_compiling() else getattr(mask, _NOTE, None)
    if said is not None:
        asked = own._replace(bottom_right=True, window_left=said.window_left)
        call = call._replace(is_causal=True, asked=asked, sinks=sinks)
        if said.padding is None:
            mask = None
        elif (packed := as_packed(call, said.padding)) is not None:
            return packed
        else:
            call = call._replace(is_causal=False, asked=own)
    elif mask is not None:
        call = call._replace(is_causal=False, asked=own, sinks=sinks)
    else:
        call = call._replace(asked=own, sinks=sinks)
    if own != NONE:
        return features.serve(call, mask, dropout)[0]
    if mask is not None:
        return None
    if call.asked != NONE:
        found = features.attempt(call, None, dropout)
        return None if found is None else found[0]
    if call.is_causal and call.q.shape[2] != call.k.shape[2]:
        return None
    return attempt(*call[:3], None, dropout, *call[3:6])


def _said(arguments: Mapping[str, Any]) -> _Said | None:
    """All that the mask of these arguments says; None where it may say more than `_Said` can. The
    mask may have to be looked into for padding, as transformers does too."""
    traced = is_exporting() or torch._C._get_tracing_state() is not None
    if traced or torch.compiler.is_compiling():
        return None
    changed = not arguments.get("allow_is_causal_skip", True) or arguments.get("use_vmap", False)
    if changed or arguments.get("allow_is_bidirectional_skip", False):
        return None
    sizes = [arguments.get(f"{side}_offset", 0) for side in ("q", "kv")]
    sizes += [arguments.get(f"{side}_length") for side in ("q", "kv")]
    if any(type(size) is not int for size in sizes) or sizes[0] + sizes[2] != sizes[1] + sizes[3]:
        return None
    local, config = arguments.get("local_size"), arguments.get("config")
    if local is not None:  # of a sliding window, or of chunks, which a window does not say
        chunked = getattr(config, "attention_chunk_size", None) is not None
        if chunked or local != getattr(config, "sliding_window", None):
            return None
    padding = arguments.get("attention_mask")
    if padding is not None and (padding.dim() != 2 or _is_captured(padding)):
        return None
    if padding is not None and bool(padding.all()):
        padding = None
    return _Said(-1 if local is None else int(local) - 1, padding)


def _is_captured(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph is captured, so that nobody may look into the tensor."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _says_nothing(arguments: dict[str, Any]) -> bool:
    """Whether the mask is a plain causal one, or one that hides nothing. An exported program would
    keep the answer for other lengths, so it is False there."""
    if arguments.get("attention_mask") is not None or arguments.get("local_size") is not None:
        return False
    if is_exporting() or torch._C._get_tracing_state() is not None:
        return False
    if arguments.get("allow_is_bidirectional_skip", False):
        return True
    aligned: bool = (
        arguments.get("q_offset", 0) == arguments.get("kv_offset", 0)
        and arguments["q_length"] == arguments["kv_length"]
    )
    return bool(arguments.get("allow_is_causal_skip", True)) and aligned
