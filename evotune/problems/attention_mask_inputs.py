"""Seeded masks of attention, which show where a kernel reads or applies one wrongly.

A row of a mask sees the keys of one of several traits (`_TRAITS`). The rows of each head have all
of them in turn. A mask with few rows, as padding has, takes them from the front of the list, where
many keys are seen; the seed says with which trait it begins.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from evotune.problems.attention_masks import BIAS, Mask
from evotune.problems.problem import TensorSpec, table_on, torch_dtype

_TRAITS = ("holes", "tail", "blocks", "head", "sparse", "all", "one", "last", "none", "first")
_FEW_ROWS = 3
_MANY_SEEN = 5
"""So many traits, from the front, see several keys of most lengths."""
_BLOCKS = (16, 32, 64, 128, 48)
_FAR_BIAS = 200.0
"""In large_logits: with it an exponential without the maximum is infinite."""


class _Rows(NamedTuple):
    """For each row of a mask its trait's number, and how often its head had that trait before."""

    turn: torch.Tensor
    step: torch.Tensor

    def has(self, trait: str) -> torch.Tensor:
        return self.turn == _TRAITS.index(trait)


def made(
    spec: TensorSpec, mask: Mask, kind: str, seed: int, generator: torch.Generator
) -> torch.Tensor:
    """The mask of a case for inputs of that kind, as `spec` has it.

    A row sees, by its trait

    - holes: seven keys in ten, and the last one. sparse: one in ten. all, none.
    - tail, head: the keys before, and from, a random one. blocks: some blocks of 16 to 128 keys,
      and one key of a block that is hidden otherwise.
    - one, first, last: one key alone.

    A bias has 0.5 N(0, 1) on the keys that are seen, or up to 30 either way; some rows have -1e4,
    or for large_logits 200 more, on all of them. Hidden keys have -inf, the lowest float, or -1e4;
    so a row that sees none has one of these for all keys.
    """
    device = generator.device
    *outer, keys = spec.shape
    rows = _rows(spec.shape[:3], seed, device)
    seen = _seen(rows, keys, generator)
    if mask.kind != BIAS:
        return seen.to(torch.uint8)
    dtype = torch_dtype(spec.dtype)
    noise = torch.randn((*outer, keys), generator=generator, device=device)
    step = rows.step[..., None]
    loud = 30.0 * torch.tanh(noise)
    bias = torch.where(step % 2 == 0, 0.5 * noise, loud)
    shift = table_on(device, (0.0, 0.0, -1e4, 0.0, 30.0, 0.0))
    if kind == "large_logits":
        shift = table_on(device, (0.0, _FAR_BIAS, -1e4, 0.0, -_FAR_BIAS))
    bias += shift.float()[(step + rows.turn[..., None]) % len(shift)]
    lowest = torch.finfo(dtype).min
    hidden = table_on(device, (-math.inf, lowest, -1e4, -math.inf)).float()
    order = (step + seed // 7 + rows.turn[..., None] // 3) % len(hidden)
    return torch.where(seen, bias, hidden[order]).to(dtype)


def _rows(shape: tuple[int, ...], seed: int, device: torch.device) -> _Rows:
    batch, heads, rows = shape
    numbers = torch.arange(rows, device=device)
    numbers = numbers + 3 * torch.arange(heads, device=device)[:, None]
    numbers = numbers + torch.arange(batch, device=device)[:, None, None] + seed % 2520
    traits = len(_TRAITS) if batch * heads * rows > _FEW_ROWS else _MANY_SEEN
    return _Rows(numbers % traits, numbers // traits)


def _seen(rows: _Rows, keys: int, generator: torch.Generator) -> torch.Tensor:
    """The keys that each row sees, as bools."""
    device = generator.device

    def drawn(*more: int) -> torch.Tensor:
        return torch.rand((*rows.turn.shape, *more), generator=generator, device=device)

    places = (drawn() * keys).long()
    first = torch.where(rows.has("head"), places, 0)
    end = torch.where(rows.has("tail"), places + 1, keys)
    nothing = rows.has("one") | rows.has("last") | rows.has("none") | rows.has("first")
    end = torch.where(nothing, 0, end)
    share = torch.where(rows.has("holes"), 0.7, torch.where(rows.has("sparse"), 0.1, 1.0))
    key = torch.arange(keys, device=device)
    seen = (key >= first[..., None]) & (key < end[..., None])
    seen &= drawn(keys) < share[..., None]
    block = table_on(device, _BLOCKS)[rows.step % len(_BLOCKS)][..., None]
    number = key // block + rows.step[..., None]
    seen &= ~rows.has("blocks")[..., None] | (number % 3 == 0)
    single = torch.where(rows.has("first"), 0, places)
    single = torch.where(rows.has("last") | rows.has("holes"), keys - 1, single)
    has_single = ~(rows.has("none") | rows.has("head") | rows.has("tail") | rows.has("sparse"))
    return seen | (has_single[..., None] & (key == single[..., None]))
