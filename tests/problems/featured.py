"""Attention with features, written down once more: one score after the other, and by tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from evotune.problems import Case
from evotune.problems.problem import Tensors


def modified(score: float, head: int, row: int, column: int) -> float:
    """The one modification that tests use."""
    return score - 0.3 * abs(row - column) if head % 2 == 0 else min(score, 1.0)


def visible_keys(case: Case, row: int) -> Iterator[int]:
    s: Any = case.symbols
    own = row + (s["seq_len_k"] - s["seq_len_q"] if s["bottom_right"] else 0)
    for key in range(s["seq_len_k"]):
        if s["causal"] and key > own:
            continue
        if s["window_left"] >= 0 and own - key > s["window_left"]:
            continue
        if s["window_right"] >= 0 and key - own > s["window_right"]:
            continue
        yield key


def one_by_one(case: Case, inputs: Tensors) -> Tensors:
    """In float64 by loops."""
    s: Any = case.symbols
    batch, heads, group = s["batch"], s["heads"], s["heads"] // s["kv_heads"]
    q, k, v = (inputs[name].double() for name in ("q", "k", "v"))
    out = torch.zeros(batch, heads, s["seq_len_q"], s["value_dim"], dtype=torch.float64)
    lse = torch.full((batch, heads, s["seq_len_q"]), -math.inf, dtype=torch.float64)
    shift = s["seq_len_k"] - s["seq_len_q"] if s["bottom_right"] else 0
    for b in range(batch):
        for h in range(heads):
            for row in range(s["seq_len_q"]):
                keys = list(visible_keys(case, row))
                scores = [float(q[b, h, row] @ k[b, h // group, j]) for j in keys]
                scores = [x * s["softmax_scale"] for x in scores]
                if s["softcap"]:
                    scores = [s["softcap"] * math.tanh(x / s["softcap"]) for x in scores]
                if s["alibi"]:
                    slope = float(inputs["alibi_slopes"][h])
                    away = [abs(row + shift - j) for j in keys]
                    scores = [x - slope * d for x, d in zip(scores, away, strict=True)]
                if s["score_mod"]:
                    scores = [modified(x, h, row, j) for x, j in zip(scores, keys, strict=True)]
                logits = [*scores, *([float(inputs["sinks"][h])] if s["sinks"] else [])]
                if not logits:
                    continue
                top = max(logits)
                total = sum(math.exp(x - top) for x in logits)
                lse[b, h, row] = top + math.log(total)
                for j, x in zip(keys, scores, strict=True):
                    out[b, h, row] += math.exp(x - top) / total * v[b, h // group, j]
    return {"out": out, **({"lse": lse} if s["lse"] else {})}


def by_tiles(case: Case, inputs: Tensors, *, tile: int = 16, base2: bool = False) -> Tensors:
    """In float32 by tiles of keys with a running maximum, as a fused kernel computes it; weights
    are rounded once in half precision. `base2`: scores times log2(e), 2^x in place of e^x."""
    s: Any = case.symbols
    group = s["heads"] // s["kv_heads"]
    dtype = inputs["q"].dtype
    q, k, v = (inputs[name].float() for name in ("q", "k", "v"))
    k, v = (each.repeat_interleave(group, dim=1) for each in (k, v))
    unit = math.log2(math.e) if base2 else 1.0
    power = torch.exp2 if base2 else torch.exp
    rows, keys = torch.arange(s["seq_len_q"])[:, None], torch.arange(s["seq_len_k"])
    own = rows + (s["seq_len_k"] - s["seq_len_q"] if s["bottom_right"] else 0)
    top = torch.full(q.shape[:3], -1e30)[..., None]
    total, out = torch.zeros_like(top), torch.zeros(*q.shape[:3], s["value_dim"])
    if s["sinks"]:
        top = inputs["sinks"].view(1, -1, 1, 1).expand_as(top) * unit
        total = torch.ones_like(total)
    for first in range(0, s["seq_len_k"], tile):
        key = keys[first : first + tile]
        scores = q @ k[:, :, first : first + tile].transpose(-1, -2) * s["softmax_scale"]
        if s["softcap"]:
            scores = s["softcap"] * torch.tanh(scores / s["softcap"])
        if s["alibi"]:
            scores = scores - inputs["alibi_slopes"].view(1, -1, 1, 1) * (own - key).abs()
        if s["score_mod"]:
            even = (torch.arange(s["heads"]) % 2 == 0).view(1, -1, 1, 1)
            changed = scores - 0.3 * (rows - key).abs()
            scores = torch.where(even, changed, scores.clamp(max=1.0))
        hidden = torch.zeros(len(rows), len(key), dtype=torch.bool)
        if s["causal"]:
            hidden |= key > own
        if s["window_left"] >= 0:
            hidden |= key < own - s["window_left"]
        if s["window_right"] >= 0:
            hidden |= key > own + s["window_right"]
        scores = (scores * unit).masked_fill(hidden, -math.inf)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = power(scores - higher)
        factor = power(top - higher)
        total = total * factor + weights.sum(-1, keepdim=True)
        rounded = weights.to(dtype).float()
        out = out * factor + rounded @ v[:, :, first : first + tile]
        top = higher
    lse = torch.where(total > 0, top / unit + torch.log(total), -math.inf)
    found = {"out": torch.where(total > 0, out / total, 0.0).to(dtype), "lse": lse[..., 0]}
    return found if s["lse"] else {"out": found["out"]}
