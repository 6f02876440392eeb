"""A case of attention, for people and for lists of cases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ._asked_features import asked_of

_SIZES = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim")


def listed_shape(symbols: Mapping[str, Any], features: Mapping[str, Any]) -> dict[str, Any]:
    """The shape as a list of cases has it: with `features`, and without what is usual."""
    shape = {name: symbols[name] for name in _SIZES}
    if symbols["value_dim"] != symbols["head_dim"]:
        shape["value_dim"] = symbols["value_dim"]
    shape |= features
    if _has_own_scale(symbols):
        shape["scale"] = symbols["softmax_scale"]
    return shape


def in_words(symbols: Mapping[str, Any]) -> str:
    words = [f"{name} {symbols[name]}" for name in (*_SIZES, "causal")]
    if symbols["value_dim"] != symbols["head_dim"]:
        words.append(f"value_dim {symbols['value_dim']}")
    if _has_own_scale(symbols):
        words.append(f"scale {symbols['softmax_scale']:g}")
    if features := asked_of(symbols).words():
        words.append(features)
    return ", ".join(words)


def _has_own_scale(symbols: Mapping[str, Any]) -> bool:
    return bool(symbols["softmax_scale"] != 1.0 / math.sqrt(symbols["head_dim"]))
