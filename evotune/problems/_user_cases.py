"""Values of a user problem's inputs: see `UserProblem.make_input`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from evotune.problems._lengths import LENGTH_CLASSES, WORD, beyond, last_odd, past_words

# --- Sizes that a user's own problem is checked on beside the sizes of a space --------------------

Sizes = dict[str, int]

_EDGES = ((1, 1, 1, 1), (3, 5, 7, 2), (17, 63, 65, 19), (67, 1087, 31, 34))
_IF_TOO_LARGE = ((67, 129, 31, 34), (13, 37, 11, 34))
_MULTIPLES = (1, 8, 64)
_MOST_BESIDE_LARGE = 9
_ATTEMPTS = 16


def edge_sizes(names: Sequence[str]) -> Iterator[list[Sizes]]:
    """Yields four lists of small and odd sizes. In each the wanted sizes come first, then
    replacements to use if they are too large."""
    for wanted in _EDGES:
        others = _IF_TOO_LARGE if wanted == _EDGES[-1] else ()
        yield [_cycled(names, numbers) for numbers in (wanted, *others)]


def random_sizes(
    rng: random.Random, names: Sequence[str], longest: Mapping[str, int]
) -> Iterator[tuple[list[Sizes], bool]]:
    """Yields, without end, a list of candidates and True if the case may be large. Try the
    candidates one after the other until one makes sense and is not too large.

    Each size is once the space's longest odd one, once well beyond it and once past 16 bits, while
    the others are small. In turn with these lists, each size goes through all classes of lengths,
    repeatedly.
    """
    large = [
        [_beside(rng, names, name, size) for size in sizes(rng, longest[name])]
        for name in names
        for sizes in _LARGE
    ]
    rng.shuffle(large)
    while True:
        columns = {name: rng.sample(LENGTH_CLASSES, len(LENGTH_CLASSES)) for name in names}
        for place in range(len(LENGTH_CLASSES)):
            if large:
                yield [m for sizes in large.pop() for m in _multiples(sizes)], True
            sizes = {name: draws[place](rng) for name, draws in columns.items()}
            yield _less_and_less(sizes), False


_LARGE: tuple[Callable[[random.Random, int], tuple[int, ...]], ...] = (
    lambda _, longest: (last_odd(longest),),
    lambda rng, longest: (beyond(rng, longest),),
    lambda rng, longest: (past_words(rng), WORD // 2 + 2 * rng.randint(0, 99) + 1),
)


def _beside(rng: random.Random, names: Sequence[str], large: str, size: int) -> Sizes:
    return {name: size if name == large else rng.randint(1, _MOST_BESIDE_LARGE) for name in names}


def _less_and_less(sizes: Sizes) -> list[Sizes]:
    """The sizes and their multiples of 8 and 64; then the same with the largest size cut to a
    third, again and again."""
    found = []
    for _ in range(_ATTEMPTS):
        found += _multiples(sizes)
        if not sizes or max(sizes.values()) == 1:
            break
        name = max(sizes, key=lambda name: sizes[name])
        sizes = {**sizes, name: sizes[name] // 3 | 1}
    return found


def _multiples(sizes: Sizes) -> list[Sizes]:
    """The sizes, and the next multiples of 8 and 64 for kernels that take only those."""
    return [{name: -(-size // m) * m for name, size in sizes.items()} for m in _MULTIPLES]


def _cycled(names: Sequence[str], values: Sequence[int]) -> Sizes:
    return {name: values[place % len(values)] for place, name in enumerate(names)}


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
