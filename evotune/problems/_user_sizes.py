"""Sizes that a user's own problem is checked on beside the sizes of a space."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from evotune.problems._lengths import WORD, beyond, last_odd, past_words, round_beyond
from evotune.problems._pair_cover import PairCover, SizeClass, Sizes
from evotune.problems._size_classes import COARSE, length_classes, single

_EDGES = ((1, 1, 1, 1), (3, 5, 7, 2), (17, 63, 65, 19), (67, 1087, 31, 34))
_IF_TOO_LARGE = ((67, 129, 31, 34), (13, 37, 11, 34))
_MULTIPLES = (1, 8, 64)
_MOST_BESIDE_LARGE = 9
_ATTEMPTS = 16
_SPECIAL_EVERY = 2
_MANY_ELEMENTS = 1 << 24  # the least number that float32 does not count by one
_CANDIDATES = 4


class Accept(Protocol):
    """Tries sizes one after the other; returns those of the first case that makes sense and is not
    too large, and has a tensor of so many elements, or None."""

    def __call__(
        self, candidates: Sequence[Sizes], *, large: bool, elements: int = 0
    ) -> Sizes | None: ...


def edge_sizes(names: Sequence[str]) -> Iterator[list[Sizes]]:
    """Yields four lists of small and odd sizes. In each the wanted sizes come first, then
    replacements to use if they are too large."""
    for wanted in _EDGES:
        others = _IF_TOO_LARGE if wanted == _EDGES[-1] else ()
        yield [_cycled(names, numbers) for numbers in (wanted, *others)]


def random_sizes(
    rng: random.Random, names: Sequence[str], longest: Mapping[str, int], accept: Accept
) -> Iterator[Sizes | None]:
    """Yields sizes without end; None for an attempt that gave no case.

    About the first hundred meet each pair of classes of two sizes. In turn with these, each size is
    once the space's longest odd one, well beyond it, a round one beyond it, multiples of 4,096 and
    lengths past 16 and 17 bits, while the others are small; then a tensor has more than 2^24
    elements.
    """

    def settled(sizes: Sizes, asked: Collection[str], cost: int) -> Sizes | None:
        beside = {n: size if n in asked else min(size, _beside(rng)) for n, size in sizes.items()}
        whole = _multiples(beside) if cost > 1 else _less_and_less(sizes, asked)
        return accept(whole, large=cost > 1)

    cover = PairCover(rng, list(_classes(names)), settled, candidates=_CANDIDATES)
    special = [
        [{n: size if n == name else _beside(rng) for n in names} for size in sizes]
        for name in names
        for sizes in _large(rng, longest[name])
    ]
    rng.shuffle(special)
    covered = iter(cover)
    for number in itertools.count():
        found: Sizes | None = None
        if names and special and number % _SPECIAL_EVERY == 0:
            wanted = [each for sizes in special.pop() for each in _multiples(sizes)]
            found = accept(wanted, large=True)
            if not special and found is not None:
                special_elements = _many_elements(rng, names)
                many = accept(special_elements, large=True, elements=_MANY_ELEMENTS)
                if many is not None:
                    yield many
        if found is not None:
            cover.met(found)
            yield found
        else:
            yield next(covered) if names else accept([{}], large=False)


def _classes(names: Sequence[str]) -> Iterator[SizeClass]:
    for name in names:
        yield from length_classes(name, long_cost=2, exact_cost=lambda length: 1 + length // 600)
        over = single(
            name, f"{name} over 1,000", lambda n: n > 1000, lambda rng: rng.randint(1001, 1400)
        )
        yield replace(over, level=COARSE, weight=2.0, cost=2)


def _large(rng: random.Random, longest: int) -> Iterator[tuple[int, ...]]:
    """Large sizes, each with what to take in its place if it is too large."""
    yield (last_odd(longest),)
    yield (beyond(rng, longest),)
    yield (round_beyond(rng, longest),)
    yield past_words(rng), WORD // 2 + 2 * rng.randint(0, 99) + 1
    yield 70_000 + rng.randint(0, 9999), past_words(rng)
    yield 2 * WORD + 2 * rng.randint(0, 999) + 1, past_words(rng)
    yield (4096,)
    yield (4096 * rng.choice((2, 3, 5)),)


def _many_elements(rng: random.Random, names: Sequence[str]) -> list[Sizes]:
    """Sizes of which one, or the product of two, is just past 2^24."""
    count = min(2, len(names))
    found = []
    for large in itertools.combinations(names, count):
        size = round(_MANY_ELEMENTS ** (1 / count)) + rng.randint(1, 40)
        found.append({name: size if name in large else 1 for name in names})
    rng.shuffle(found)
    return [each for sizes in found for each in _multiples(sizes)]


def _beside(rng: random.Random) -> int:
    """A size beside a large one."""
    return rng.randint(1, _MOST_BESIDE_LARGE)


def _less_and_less(sizes: Sizes, asked: Collection[str]) -> list[Sizes]:
    """The sizes and their multiples of 8 and 64; then the same with the largest size, of those not
    asked for while there are any, cut to about a third, again and again. It keeps its remainder by
    16 while it is large."""
    found = []
    for _ in range(_ATTEMPTS):
        found += _multiples(sizes)
        if not sizes or max(sizes.values()) == 1:
            break
        free = [name for name in sizes if name not in asked and sizes[name] > 1] or list(sizes)
        name = max(free, key=lambda name: sizes[name])
        third = sizes[name] // 3
        kept = third - third % 16 + sizes[name] % 16
        sizes = {**sizes, name: kept if 16 < kept < sizes[name] else third | 1}
    return found


def _multiples(sizes: Sizes) -> list[Sizes]:
    """The sizes, and the next multiples of 8 and 64 for kernels that take only those."""
    return [{name: -(-size // m) * m for name, size in sizes.items()} for m in _MULTIPLES]


def _cycled(names: Sequence[str], values: Sequence[int]) -> Sizes:
    return {name: values[place % len(values)] for place, name in enumerate(names)}
