"""Registers the package with transformers, which need not be installed otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._tracing import is_exporting


def register(name: str, attempt: Callable[..., torch.Tensor | None]) -> None:
    """Makes `attn_implementation=name` valid. `attempt` serves a call, or returns None: then
    transformers' own `sdpa` implementation does, with the arguments that the model gave.

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
        plain = attention_mask is None and others.get("position_bias") is None
        if plain and not others.get("output_attentions", False):
            causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            causal = query.shape[2] > 1 and causal
            grouped = getattr(module, "num_key_value_groups", 1) > 1
            if not causal or query.shape[2] == key.shape[2]:
                out = attempt(query, key, value, None, dropout, bool(causal), scaling, grouped)
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
        return found

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, mask)


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
