"""Packs the tokens of padded sequences, as `flash_attn.bert_padding` does."""

from __future__ import annotations

import torch


def unpad_input(
    hidden: torch.Tensor, mask: torch.Tensor, unused: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """The tokens of hidden (batch, length, ...) where mask (batch, length) is true, one after the
    other.

    Returns them (tokens, ...); their places (tokens,) among all batch * length; where each sequence
    begins (batch + 1,), in int32; the greatest length; and the lengths (batch,) without the tokens
    of `unused`, a mask of tokens that are packed all the same.
    """
    packed = mask if unused is None else (mask + unused).bool()
    lengths = packed.sum(dim=1, dtype=torch.int32)
    begins = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=mask.device)
    begins[1:] = lengths.cumsum(0)
    places = packed.flatten().nonzero().flatten()
    used = mask.sum(dim=1, dtype=torch.int32)
    return hidden.flatten(0, 1)[places], places, begins, int(lengths.max()), used


def pad_input(tokens: torch.Tensor, places: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """tokens (tokens, ...) back at their places of (batch, length, ...), zeros elsewhere."""
    padded = tokens.new_zeros(batch * length, *tokens.shape[1:])
    return padded.index_copy(0, places, tokens).unflatten(0, (batch, length))
