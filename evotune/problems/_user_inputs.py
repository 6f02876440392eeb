"""Values of a user problem's inputs: see `UserProblem.make_input`."""

from __future__ import annotations

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
