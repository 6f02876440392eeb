"""Sizes that kernels get wrong: one off a tile, odd, long, past the range of 16 bits."""

from __future__ import annotations

import random

WORD = 1 << 16
"""The least value that does not fit into 16 bits; half of it does not fit into 16 signed bits."""

_LEAST_BEYOND = 2048


def last_odd(longest: int) -> int:
    """The space's longest odd length."""
    return max(1, longest - 1 + longest % 2)


def round_beyond(rng: random.Random, longest: int) -> int:
    """A multiple of 256, more than the space's longest and more than 1,024."""
    return 256 * (max(longest, _LEAST_BEYOND // 2) // 256 + rng.randint(1, 4))


def near(rng: random.Random, longest: int) -> int:
    """An odd length less than 96 below the space's longest."""
    return last_odd(rng.randint(max(1, longest - 95), longest))


def beyond(rng: random.Random, longest: int) -> int:
    """An odd length, more than twice the space's longest and more than 2,048."""
    return 2 * max(longest, _LEAST_BEYOND // 2) + 2 * rng.randint(0, 99) + 1


def past_words(rng: random.Random) -> int:
    """An odd length that just does not fit into 16 bits."""
    return WORD + 2 * rng.randint(0, 99) + 1


def other_scalar(rng: random.Random, usual: float) -> float:
    """A value 1.4 to 8 times smaller or larger than the usual one."""
    return significant(usual * 2.0 ** (rng.uniform(0.5, 3.0) * rng.choice((-1, 1))))


def significant(value: float) -> float:
    """The value rounded to three digits, so that a label can show it exactly."""
    return float(f"{value:.3g}")
