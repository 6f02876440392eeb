"""Right and wrong ways of rounding a float32 result to float16, and right results to round."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch

from . import emulations

Rounding = Callable[[torch.Tensor], torch.Tensor]


def to_nearest(result: torch.Tensor) -> torch.Tensor:
    return result.half()


def towards_zero(result: torch.Tensor) -> torch.Tensor:
    """Off by less than one unit in the last place, as two roundings to nearest are."""
    nearest = result.half()
    too_large = nearest.float().abs() > result.abs()
    return (nearest.view(torch.int16) - too_large.short()).view(torch.float16)


def last_bit_flipped(result: torch.Tensor) -> torch.Tensor:
    """Off by up to 1.5 units in the last place: half of one by rounding, and one more."""
    return (result.half().view(torch.int16) ^ 1).view(torch.float16)


ROUNDINGS: Mapping[str, Rounding] = {
    "to_nearest": to_nearest,
    "towards_zero": towards_zero,
    "last_bit_flipped": last_bit_flipped,
}


def weights_in_float(p: emulations.Problem) -> torch.Tensor:
    """The arithmetic of tests/red_team/data/kernels/cheats.cu: tiles of HEAD_DIM keys, one sum from
    the first key to the last, weights in float32."""
    exact = emulations.Problem(p.q, p.k, p.v, p.scale, p.causal, torch.float32)
    tile = p.q.shape[3]
    top = torch.full_like(p.q[..., :1], -1e30)
    total, out = torch.zeros_like(top), torch.zeros_like(p.q)
    for start in range(0, p.k.shape[2], tile):
        scores = exact.scores[..., start : start + tile]
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        total, out = (each * torch.exp(top - higher) for each in (total, out))
        for j, weight in enumerate(torch.exp(scores - higher).split(1, dim=-1), start):
            total += weight
            out += weight * p.v[..., j : j + 1, :]
        top = higher
    return out / total


def rounded_before_the_division(p: emulations.Problem) -> torch.Tensor:
    """The sums over the keys are rounded to half precision, and the results once more."""
    weights = torch.exp(p.scores - p.scores.amax(-1, keepdim=True))
    return p.rounded(p.rounded(weights) @ p.v) / weights.sum(-1, keepdim=True)


WAYS: Mapping[str, emulations.Way] = {
    **emulations.HONEST,
    "tiles_of_16": functools.partial(emulations.online, tile=16),
    "tiles_of_32": functools.partial(emulations.online, tile=32),
    "weights_in_float": weights_in_float,
    "rounded_before_the_division": rounded_before_the_division,
}
