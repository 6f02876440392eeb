"""Sizes that a user's own problem is checked on beside the sizes of a space."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from evotune.problems._lengths import (
    LENGTH_CLASSES,
    WORD,
    Remainders,
    beyond,
    last_odd,
    past_words,
    round_beyond,
)

Sizes = dict[str, int]

_EDGES = ((1, 1, 1, 1), (3, 5, 7, 2), (17, 63, 65, 19), (67, 1087, 31, 34))
_IF_TOO_LARGE = ((67, 129, 31, 34), (13, 37, 11, 34))
_MULTIPLES = (1, 8, 64)
_MOST_BESIDE_LARGE = 9
_ATTEMPTS = 16
_ALL_REMAINDERS, _REMAINDERS = 16, 5
"""So many lengths of any remainder come after one of each class: at first, and later. On a slow
machine there may be no time for all tests."""


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

    Each size is once the space's longest odd one, once well beyond it, once a round one beyond it
    and once past 16 bits, while the others are small. In turn with these lists, each size goes
    through all classes of lengths, repeatedly, and through all remainders by 16.
    """
    large = [
        [_beside(rng, names, name, size) for size in sizes(rng, longest[name])]
        for name in names
        for sizes in _LARGE
    ]
    rng.shuffle(large)
    remainders = {name: Remainders(rng) for name in names}
    for count in itertools.chain([_ALL_REMAINDERS], itertools.repeat(_REMAINDERS)):
        columns = {name: rng.sample(LENGTH_CLASSES, len(LENGTH_CLASSES)) for name in names}
        for place in range(len(LENGTH_CLASSES) + count):
            if large:
                yield [m for sizes in large.pop() for m in _multiples(sizes)], True
            if place < len(LENGTH_CLASSES):
                sizes = {name: draws[place](rng) for name, draws in columns.items()}
            else:
                sizes = {name: dealt.draw() for name, dealt in remainders.items()}
            yield _less_and_less(sizes), False


_LARGE: tuple[Callable[[random.Random, int], tuple[int, ...]], ...] = (
    lambda _, longest: (last_odd(longest),),
    lambda rng, longest: (beyond(rng, longest),),
    lambda rng, longest: (round_beyond(rng, longest),),
    lambda rng, longest: (past_words(rng), WORD // 2 + 2 * rng.randint(0, 99) + 1),
)


def _beside(rng: random.Random, names: Sequence[str], large: str, size: int) -> Sizes:
    return {name: size if name == large else rng.randint(1, _MOST_BESIDE_LARGE) for name in names}


def _less_and_less(sizes: Sizes) -> list[Sizes]:
    """The sizes and their multiples of 8 and 64; then the same with the largest size cut to about
    a third, again and again. It keeps its remainder by 16 while it is large."""
    found = []
    for _ in range(_ATTEMPTS):
        found += _multiples(sizes)
        if not sizes or max(sizes.values()) == 1:
            break
        name = max(sizes, key=lambda name: sizes[name])
        third = sizes[name] // 3
        kept = third - third % 16 + sizes[name] % 16
        sizes = {**sizes, name: kept if 16 < kept < sizes[name] else third | 1}
    return found


def _multiples(sizes: Sizes) -> list[Sizes]:
    """The sizes, and the next multiples of 8 and 64 for kernels that take only those."""
    return [{name: -(-size // m) * m for name, size in sizes.items()} for m in _MULTIPLES]


def _cycled(names: Sequence[str], values: Sequence[int]) -> Sizes:
    return {name: values[place % len(values)] for place, name in enumerate(names)}
