"""Values of a user problem's inputs: see `UserProblem.make_input` and `Tensor`."""

from __future__ import annotations

import math

import torch

_TRAITS = 5
_SPIKES = (12.5, 6.5, 11.0, 8.0, 13.0, 9.5)


def input_values(shape: tuple[int, ...], kind: str, generator: torch.Generator) -> torch.Tensor:
    """float32 values on the generator's device."""
    device = generator.device
    values = torch.randn(shape, generator=generator, device=device)
    if kind == "normal" or not shape:
        return values
    rows, columns = values.reshape(-1, shape[-1]), shape[-1]
    turn = torch.randint(2520, (1,), generator=generator, device=device)
    turn = turn + torch.arange(len(rows), device=device)
    if kind == "large":
        rows = _large(rows, turn)
    elif kind == "ramp":
        count = torch.arange(values.numel(), device=device) % 251
        rows = (count / 125.0 - 1.0).reshape(rows.shape) + 0.001 * rows
        if len(shape) > 1:
            rows[turn % _TRAITS == 0] = 0.0
            rows[turn % _TRAITS == 1, 0] = 0.0  # another one only begins with a zero
    elif kind == "spike":
        heights = torch.tensor(_SPIKES, device=device)[turn % len(_SPIKES)]
        place = torch.arange(len(rows), device=device) * 7919 % columns
        rows = rows * 0.1
        rows[torch.arange(len(rows), device=device), place] = heights
    return rows.reshape(shape)


def _large(rows: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    trait, part = turn % _TRAITS, turn // _TRAITS % _TRAITS / (_TRAITS - 1)
    shift = ((trait == 1).float() - (trait == 2).float()) * (150.0 + 150.0 * part)
    slope = ((trait == 3).float() - (trait == 4).float()) * (120.0 + 30.0 * part)
    along = torch.linspace(-1.0, 1.0, rows.shape[1], device=rows.device)
    spread = torch.where(trait == 0, 32.0, 1.0)
    return rows * spread[:, None] + shift[:, None] + slope[:, None] * along


def index_values(
    shape: tuple[int, ...], values: range, kind: str, generator: torch.Generator
) -> torch.Tensor:
    """int64 integers of a range: in normal any, in large its two ends, in ramp all in order, over
    and over, in spike one and the same."""
    device = generator.device
    drawn = torch.randint(len(values), shape, generator=generator, device=device)
    count = torch.arange(drawn.numel(), device=device).reshape(shape)
    if kind == "large":
        drawn = (drawn + count) % 2 * (len(values) - 1)
    elif kind == "ramp":
        drawn = count % len(values)
    elif kind == "spike":
        drawn = torch.full_like(drawn, int(drawn.flatten()[0]))
    return values.start + drawn * values.step


def spread_values(
    shape: tuple[int, ...], least: float, most: float, generator: torch.Generator
) -> torch.Tensor:
    """float32 numbers from `least` to `most`, drawn evenly in the logarithm."""
    share = torch.rand(shape, generator=generator, device=generator.device)
    return torch.exp(math.log(least) + share * (math.log(most) - math.log(least)))
