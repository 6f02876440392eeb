"""Stands in for transformers where that is not installed."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

Forward = Callable[..., tuple[torch.Tensor, None]]


class Registry:
    """Stands in for transformers: keeps what the package registers, and makes masks as
    `sdpa_mask` does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forward: Forward
        self.mask: Callable[..., torch.Tensor | None]
        self.left_to_sdpa = 0
        whole = types.ModuleType("transformers")
        integrations = types.ModuleType("transformers.integrations.sdpa_attention")
        masking = types.ModuleType("transformers.masking_utils")
        whole.AttentionInterface = SimpleNamespace(  # type: ignore[attr-defined]
            register=lambda _, function: setattr(self, "forward", function)
        )
        whole.AttentionMaskInterface = SimpleNamespace(  # type: ignore[attr-defined]
            register=lambda _, function: setattr(self, "mask", function)
        )
        integrations.sdpa_attention_forward = self._sdpa  # type: ignore[attr-defined]
        masking.sdpa_mask = self._sdpa_mask  # type: ignore[attr-defined]
        for module in (whole, integrations, masking):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def _sdpa(
        self,
        module: Any,
        *given: Any,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        q, k, v, mask = given
        if others.get("softcap") is not None:
            raise ValueError("`sdpa` attention does not support `softcap`")
        self.left_to_sdpa += 1
        causal = q.shape[2] > 1 and mask is None
        out = functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2).contiguous(), None

    @staticmethod
    def _sdpa_mask(**named: Any) -> torch.Tensor:
        device = named.get("device")
        own = torch.arange(named["q_length"], device=device)[:, None] + named.get("q_offset", 0)
        key = torch.arange(named["kv_length"], device=device) + named.get("kv_offset", 0)
        seen = key <= own
        if named.get("local_size") is not None:
            seen = seen & (key > own - named["local_size"])
        if getattr(named.get("mask_function"), "__name__", "") == "bidirectional_mask_function":
            seen = torch.ones_like(seen)
        padding = named.get("attention_mask")
        seen = seen[None, None].expand(named["batch_size"], 1, -1, -1)
        return seen if padding is None else seen & padding[:, None, None].bool()
