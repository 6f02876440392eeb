"""Tiny models that call attention in the ways of real ones, and a stand-in for transformers."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS = 32, 2


class SelfAttention(nn.Module):
    """SDPA on the views that one projection leaves, with any mask."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.options = options

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)
        return out.transpose(1, 2).flatten(2)


class GroupedDecoder(nn.Module):
    """Grouped heads, 4 of queries and 2 of keys, and a cache with room for 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, WIDTH)
        self.cache: torch.Tensor
        self.filled = 0

    def reset(self, batch: int) -> None:
        self.cache = torch.zeros(2, batch, 2, 16, 8)
        self.filled = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, 4, 8).transpose(1, 2)
        new = self.kv(x).view(batch, length, 2, 2, 8).permute(2, 0, 3, 1, 4)
        end = self.filled + length
        self.cache[:, :, :, self.filled : end] = new
        self.filled = end
        k, v = self.cache[:, :, :, :end]
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=length > 1, enable_gqa=True, scale=0.5
        )
        return out.transpose(1, 2).flatten(2)


def encoder(layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, layers, **options).eval()


class Attention(nn.Module):
    """As a model of transformers calls its attention function."""

    is_causal = True

    def __init__(self, name: str, functions: types.ModuleType, **options: Any) -> None:
        super().__init__()
        self.name = name
        self.functions = functions
        self.options = options
        self.num_key_value_groups = 2

    def forward(
        self, q: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        function = self.functions.eager_attention_forward
        if self.name != "eager":
            function = self.functions.ALL_ATTENTION_FUNCTIONS[self.name]
        out, _ = function(self, q, kv, kv, mask, dropout=0.0, scaling=0.25, **self.options)
        found: torch.Tensor = out
        return found


class Interface:
    """As transformers' AttentionInterface: functions of all models, and of one."""

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        self._global_mapping = functions
        self._local_mapping: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._local_mapping.get(name) or self._global_mapping[name]


def repeated(kv: torch.Tensor, groups: int) -> torch.Tensor:
    """As `repeat_kv` of transformers."""
    batch, heads, length, size = kv.shape
    whole = kv[:, :, None].expand(batch, heads, groups, length, size)
    return whole.reshape(batch, heads * groups, length, size)


def by_formula(  # noqa: PLR0917 - as transformers calls it
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = (repeated(each, module.num_key_value_groups) for each in (key, value))
    weights = (query @ key.transpose(2, 3)) * scaling
    if attention_mask is not None and attention_mask.dim() == 4:
        weights = weights + attention_mask
    weights = weights.softmax(dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def by_sdpa(  # noqa: PLR0917 - as transformers calls it
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
    key, value = (repeated(each, module.num_key_value_groups) for each in (key, value))
    causal = query.shape[2] > 1 and attention_mask is None and module.is_causal
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, is_causal=causal
    )
    return out.transpose(1, 2).contiguous(), None


def transformers(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module as `transformers.models.….modeling_…`, with the interface of transformers."""
    modeling = types.ModuleType("transformers.models.tiny.modeling_tiny")
    functions = {"sdpa": by_sdpa, "flash_attention_2": by_formula}
    modeling.ALL_ATTENTION_FUNCTIONS = Interface(functions)  # type: ignore[attr-defined]
    modeling.eager_attention_forward = by_formula  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, modeling.__name__, modeling)
    return modeling
