"""Sizes that kernels get wrong: one off a tile, odd, long, past the range of 16 bits."""

from __future__ import annotations

import random
from collections.abc import Callable

WORD = 1 << 16
"""The least value out of the range of 16 bits; half of it is out of a signed range."""

_LEAST_BEYOND = 2048

LENGTH_CLASSES: tuple[Callable[[random.Random], int], ...] = (
    lambda rng: 1,
    lambda rng: 2 * rng.randint(1, 15) + 1,
    lambda rng: 16 * rng.randint(1, 36) - 1,
    lambda rng: 16 * rng.randint(1, 36) + 1,
    lambda rng: 64 * rng.randint(1, 9) - 1,
    lambda rng: 64 * rng.randint(1, 9) + 1,
    lambda rng: 128 * rng.randint(1, 4) - 1,
    lambda rng: 128 * rng.randint(1, 4) + 1,
    lambda rng: 128 * rng.randint(1, 4),
    lambda rng: rng.randint(2, 600),
    lambda rng: rng.randint(601, 1200),
)
"""Ordinary lengths, each of a kind: draw from all of them in turn."""


def last_odd(longest: int) -> int:
    """The space's longest odd length."""
    return max(1, longest - 1 + longest % 2)


def near(rng: random.Random, longest: int) -> int:
    """Odd, and less than 96 below the space's longest."""
    return last_odd(rng.randint(max(1, longest - 95), longest))


def beyond(rng: random.Random, longest: int) -> int:
    """Odd, more than twice the space's longest, and more than 2,048."""
    return 2 * max(longest, _LEAST_BEYOND // 2) + 2 * rng.randint(0, 99) + 1


def past_words(rng: random.Random) -> int:
    """Odd, and just out of the range of 16 bits."""
    return WORD + 2 * rng.randint(0, 99) + 1


def other_scalar(rng: random.Random, usual: float) -> float:
    """1.4 to 8 times less or more than usual."""
    return significant(usual * 2.0 ** (rng.uniform(0.5, 3.0) * rng.choice((-1, 1))))


def significant(value: float) -> float:
    """Three digits of it, so that a label can show it as it is."""
    return float(f"{value:.3g}")
