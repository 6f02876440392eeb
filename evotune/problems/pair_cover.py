"""Draws sizes so that each pair of classes is met.

A wrong kernel is usually wrong for a class of one size, or of two, such as groups of 4 with 63 mod
64 keys. Random drawing covers pairs only by chance. So a cover makes a few cases for pairs that are
not covered yet, and takes the case that covers most of them (as AETG does: Cohen, Dalal, Fredman
and Patton, 1997). When all pairs are covered it starts again with other sizes.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

Sizes: TypeAlias = dict[str, int]

_MOST_LEVELS = 2
_ATTEMPTS = 12  # to make a case of a pair, before the pair is given up
_SERVED = 1  # pairs, for each of which a few candidates are made
_TRIED = 64  # the most pairs that are tried to find so many


@dataclass(frozen=True, slots=True)
class SizeClass:
    """A class of one size, or of several: the sizes that `draw` returns, and all others for which
    `holds` is true.

    - `of`: the names of the sizes that `draw` returns. `reads`: the names of those on which `holds`
      depends, if they differ.
    - `level`: a pair of classes must be met if their levels add up to 2 at most. A class of level 3
      is met alone.
    - `weight`: how early the class comes. The weight of a pair is the product of both weights.
    - `apart`: it need not be met with classes of these sizes.
    - `cost`: a case that is made for it may cost this many times as much as others.
    """

    name: str
    of: frozenset[str]
    holds: Callable[[Mapping[str, int]], bool]
    draw: Callable[[random.Random], Sizes]
    level: int = 1
    weight: float = 1.0
    cost: int = 1
    reads: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()

    def pairs_with(self, other: SizeClass) -> bool:
        apart = self.of | self.apart
        return self.level + other.level <= _MOST_LEVELS and apart.isdisjoint(other.of)


Settle: TypeAlias = Callable[[Sizes, Collection[str], int], "Sizes | None"]
"""Makes drawn sizes into those of a case: `settle(sizes, asked, cost)`. It may change any size, but
should leave the `asked` ones, and keep to `cost` times the usual limit. None if there is no case.
"""
_Target: TypeAlias = tuple[int, ...]  # places of one class or of two


@dataclass(slots=True)
class _Holding:
    """The classes that depend on the same sizes, and which of them hold, by these sizes."""

    names: tuple[str, ...]
    places: list[int] = field(default_factory=list)
    known: dict[tuple[int, ...], int] = field(default_factory=dict)


class PairCover:
    """An endless iterator over sizes that covers the pairs of size classes. It yields None if no
    sizes could be made.

    Sets of classes are integers in which bit n means class n.
    """

    def __init__(
        self,
        rng: random.Random,
        classes: Sequence[SizeClass],
        settle: Settle,
        *,
        candidates: int = 12,
    ) -> None:
        """`candidates`: the number of cases that are made for each of a few pairs; one is taken."""
        self._rng = rng
        self._classes = classes
        self._settle = settle
        self._candidates = candidates
        self._names = sorted({name for each in classes for name in each.of})
        holding: dict[tuple[str, ...], _Holding] = {}
        for place, each in enumerate(classes):
            names = tuple(sorted(each.reads or each.of))
            holding.setdefault(names, _Holding(names)).places.append(place)
        self._holding = list(holding.values())
        # Both are called hundreds of thousands of times, for few sets of names.
        self._deciding: dict[tuple[str, frozenset[str]], list[tuple[int, int]]] = {}
        self._decided: dict[tuple[frozenset[str], frozenset[str]], list[_Holding]] = {}
        self._failed = {target: 0 for target in self._targets()}
        self._left: list[int] = []  # of each class those that are to be met with it
        self._waiting: list[_Target] = []  # the next one last
        self._deal()

    def __iter__(self) -> Iterator[Sizes | None]:
        while True:
            yield self._next()

    def met(self, sizes: Mapping[str, int]) -> None:
        """Notes that the classes of a case made elsewhere have been met."""
        holding = self._holding_of(sizes, frozenset(sizes))
        for place in _places(holding):
            self._left[place] &= ~holding

    def _next(self) -> Sizes | None:
        best: Sizes | None = None
        most = -1
        for made in self._made_candidates():
            gain = self._gain(self._holding_of(made, frozenset(made)))
            if gain > most:
                best, most = made, gain
        if best is not None:
            self.met(best)
        return best

    def _made_candidates(self) -> Iterator[Sizes]:
        """A few cases, each made for one of the first pairs that are still to be met."""
        while self._waiting and not self._is_left(self._waiting[-1]):
            self._waiting.pop()
        if not self._waiting:
            self._deal()
        left = filter(self._is_left, reversed(self._waiting))
        served = 0
        failed = False
        for target in islice(left, _TRIED) if self._waiting else [()] * _SERVED:
            if served == _SERVED:
                break
            made = [each for _ in range(self._candidates) if (each := self._made(target))]
            served += bool(made)
            yield from made
            if target and not made:
                self._failed[target] += self._candidates
                failed = True
        if failed:
            self._waiting = [t for t in self._waiting if self._failed[t] < _ATTEMPTS]

    def _made(self, target: _Target) -> Sizes | None:
        """Sizes for which the classes of the target hold, and other classes of use."""
        wanted = [self._classes[place] for place in target]
        sizes: Sizes = {}
        for each in wanted:
            sizes |= each.draw(self._rng)
        asked = tuple(sizes)
        holding, before = 0, frozenset[str]()
        for name in self._rng.sample(self._names, len(self._names)):
            if name not in sizes:
                decided = frozenset(sizes)
                holding |= self._holding_of(sizes, decided, before)
                sizes |= self._useful(name, decided, holding).draw(self._rng)
                before = decided
        cost = max((each.cost for each in wanted), default=1)
        made = self._settle(sizes, asked, cost)
        return made if made and all(each.holds(made) for each in wanted) else None

    def _useful(self, name: str, decided: frozenset[str], holding: int) -> SizeClass:
        """A class that decides this size and none of the decided ones, and that is to be met with
        the most of the classes that hold."""
        deciding = self._deciding.get((name, decided))
        if deciding is None:
            deciding = self._deciding[name, decided] = [
                (place, 1 << place)
                for place, each in enumerate(self._classes)
                if name in each.of and each.of.isdisjoint(decided)
            ]
        best: list[int] = []
        most = 0
        for place, bit in deciding:
            use = (self._left[place] & (holding | bit)).bit_count()
            if use > most:
                best, most = [], use
            if use == most:
                best.append(place)
        return self._classes[self._rng.choice(best)]

    def _holding_of(
        self,
        sizes: Mapping[str, int],
        names: frozenset[str],
        before: frozenset[str] = frozenset(),
    ) -> int:
        """The classes that hold, of those that depend on these sizes alone; without those that
        depend on the sizes named `before` alone. `names` are those of the sizes."""
        groups = self._decided.get((before, names))
        if groups is None:
            groups = self._decided[before, names] = [
                each
                for each in self._holding
                if names.issuperset(each.names) and not before.issuperset(each.names)
            ]
        found = 0
        for group in groups:
            values = tuple([sizes[name] for name in group.names])
            bits = group.known.get(values)
            if bits is None:
                bits = 0
                for place in group.places:
                    if self._classes[place].holds(sizes):
                        bits |= 1 << place
                group.known[values] = bits
            found |= bits
        return found

    def _gain(self, holding: int) -> int:
        return sum((self._left[place] & holding).bit_count() for place in _places(holding))

    def _is_left(self, target: _Target) -> bool:
        return bool(self._left[target[0]] >> target[-1] & 1)

    def _targets(self) -> Iterator[_Target]:
        for place, each in enumerate(self._classes):
            yield (place,)
            for other in range(place):
                if each.pairs_with(self._classes[other]):
                    yield other, place

    def _weight(self, target: _Target) -> float:
        """Classes that pair are met once before any pair, since there may be no time for all."""
        if len(target) == 1 and self._classes[target[0]].level < _MOST_LEVELS:
            return math.inf
        found = 1.0
        for place in target:
            found *= self._classes[place].weight
        return found

    def _deal(self) -> None:
        """All targets that can be met, the heaviest first, others in any order."""
        self._waiting = [each for each, count in self._failed.items() if count < _ATTEMPTS]
        self._rng.shuffle(self._waiting)
        self._waiting.sort(key=self._weight, reverse=True)
        self._waiting.reverse()
        self._left = [0] * len(self._classes)
        for target in self._waiting:
            self._left[target[0]] |= 1 << target[-1]
            self._left[target[-1]] |= 1 << target[0]


def _places(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


MODELS = ((8, 8), (16, 16), (14, 2), (32, 8), (32, 32), (64, 8))
"""Heads of queries and of keys in models that are used much."""
EXACT = (
    *(127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2047, 2048),
    *(192, 320, 384, 448, 640, 768, 1152),
)
"""Lengths that are drawn by themselves: next to powers of two, and multiples of odd numbers of
tiles."""

COARSE, FINE, MODEL, ALONE = range(4)
"""Levels of classes: see `SizeClass`."""

WEIGHTS: Mapping[int, float] = {COARSE: 2.0, FINE: 1.0, MODEL: 2.0, ALONE: 3.0}
_TILES = 36  # of 16: lengths of a class go up to about 600, but for those that are longer by name
_LONG = 601


def length_classes(
    size: str,
    *,
    long_cost: int = 1,
    long_level: int = COARSE,
    exact_cost: Callable[[int], int] = lambda length: 1,
) -> Iterator[SizeClass]:
    """The classes of ordinary lengths, up to 1,200. Each value of `EXACT`, and each remainder by
    16, is a class that is met alone. Lengths over 600, and values of `EXACT`, may cost more."""

    def made(
        name: str,
        holds: Callable[[int], bool],
        draw: Callable[[random.Random], int],
        level: int = FINE,
    ) -> SizeClass:
        found = single(size, f"{size} {name}", holds, draw)
        return replace(found, level=level, weight=WEIGHTS[level])

    def rest_class(tile: int, rest: int, level: int) -> SizeClass:
        most = 16 * _TILES // tile + (tile > 256)
        return made(
            f"{rest % tile} mod {tile}",
            lambda n: n % tile == rest % tile and n > 1,
            lambda rng: tile * _fewer(rng, most) + rest,
            level,
        )

    yield made("1", lambda n: n == 1, lambda rng: 1, COARSE)
    yield made("2 to 15", lambda n: 2 <= n < 16, lambda rng: rng.randint(2, 15))
    yield made("unlike tiles", lambda n: n % 16 not in (0, 1, 15), _unlike_tiles)
    for tile, rest in ((16, -1), (64, -1), (128, -1), (64, 0), (64, 1), (256, 1)):
        found = rest_class(tile, rest, FINE)
        yield replace(found, weight=1.75 if (tile, rest) == (64, -1) else 1.2)
    yield made("127", lambda n: n == 127, lambda rng: 127, MODEL)
    long = made("over 600", lambda n: n >= _LONG, _long, long_level)
    yield replace(long, cost=long_cost)
    for tile, rest in ((256, -1), (128, 0), (128, 1), (384, 0)):
        yield rest_class(tile, rest, ALONE)
    for exact in EXACT:
        yield replace(_one(size, exact), cost=exact_cost(exact))
    for rest in range(16):
        yield replace(rest_class(16, rest, ALONE), weight=1.0)


def count_classes(size: str, spans: Sequence[tuple[int, int]]) -> Iterator[SizeClass]:
    """A class for each span, both ends included."""
    for low, high in spans:
        name = f"{size} {low}" if low == high else f"{size} {low} to {high}"
        yield single(
            size,
            name,
            lambda n, a=low, b=high: a <= n <= b,  # type: ignore[misc]
            lambda rng, a=low, b=high: rng.randint(a, b),  # type: ignore[misc]
        )


def head_classes(own: Sequence[tuple[int, int]] = ()) -> Iterator[SizeClass]:
    """The classes of `kv_heads`, of `group`, and of the pairs of both that models have. `own`: the
    heads of queries and of keys in the space's cases."""
    key_heads = ((1, 1), (2, 2), (3, 4), (5, 7), (8, 8), (9, 16), (17, 40))
    yield from count_classes("kv_heads", key_heads)
    most = next(count_classes("kv_heads", ((33, 40),)))
    yield replace(most, level=ALONE, weight=WEIGHTS[ALONE])
    groups = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (9, 15), (16, 16))
    for each in count_classes("group", groups):
        yield replace(each, weight=1.5, apart=frozenset(("kv_heads",)))
    for group, few in itertools.product(groups, ((1, 1), (2, 7), (8, 12))):
        yield _both_heads(group, few)
    yield SizeClass(
        "8 or more key heads with groups",
        frozenset(("kv_heads", "group")),
        lambda s: s["kv_heads"] >= 8 and s["group"] > 1,
        lambda rng: {"kv_heads": rng.randint(8, 12), "group": rng.randint(2, 5)},
    )
    for heads, kv_heads in dict.fromkeys((*own, *MODELS)):
        values = {"kv_heads": kv_heads, "group": heads // kv_heads}
        level = FINE if (heads, kv_heads) in own else MODEL
        yield SizeClass(
            f"{heads}/{kv_heads} heads",
            frozenset(values),
            lambda s, v=values: all(s[name] == value for name, value in v.items()),  # type: ignore[misc]
            lambda rng, v=values: dict(v),  # type: ignore[misc]
            level,
            2.0 if level == FINE else WEIGHTS[MODEL],
        )


def _both_heads(group: tuple[int, int], kv_heads: tuple[int, int]) -> SizeClass:
    spans = {"group": group, "kv_heads": kv_heads}
    return SizeClass(
        f"group {group}, kv_heads {kv_heads}",
        frozenset(spans),
        lambda s: all(low <= s[name] <= high for name, (low, high) in spans.items()),
        lambda rng: {name: rng.randint(*span) for name, span in spans.items()},
        ALONE,
    )


def single(
    size: str,
    name: str,
    holds: Callable[[int], bool],
    draw: Callable[[random.Random], int],
) -> SizeClass:
    """The class `name` of the single size `size`."""

    def has(sizes: Mapping[str, int]) -> bool:
        return holds(sizes[size])

    def drawn(rng: random.Random) -> Sizes:
        return {size: draw(rng)}

    return SizeClass(name, frozenset((size,)), has, drawn)


def _unlike_tiles(rng: random.Random) -> int:
    """A length that is neither next to a multiple of 16 nor one."""
    return 16 * (_fewer(rng, _TILES) - 1) + rng.randint(2, 14)


def _long(rng: random.Random) -> int:
    return _LONG + int(600 * rng.random() ** 3)


def _one(size: str, length: int) -> SizeClass:
    found = single(size, f"{size} {length}", lambda n: n == length, lambda rng: length)
    return replace(found, level=ALONE, weight=WEIGHTS[ALONE])


def _fewer(rng: random.Random, most: int) -> int:
    """From 1 to `most`, small numbers more often: they are cheap."""
    return 1 + int(most * rng.random() ** 2)


# Sizes that kernels get wrong: one off a tile, odd, long, past the range of 16 bits.
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


# Random shapes, cached: one process makes the plan of a confirmation for a run, for its export and
# for each package's check, and drawing takes most of the time of a plan.
Size = TypeVar("Size")

_MOST_STREAMS = 64
"""The number of streams, of about a hundred shapes each, that are kept."""


class _Stream(Generic[Size]):
    """The shapes of an iterator without end, by their number. Any thread may ask."""

    def __init__(self, drawn: Iterator[dict[str, Size]]) -> None:
        self._drawn = drawn
        self._shapes: list[dict[str, Size]] = []
        self._drawing = threading.Lock()

    def shape(self, number: int) -> dict[str, Size]:
        """A copy, which the caller may change."""
        with self._drawing:
            while number >= len(self._shapes):
                self._shapes.append(next(self._drawn))
        return dict(self._shapes[number])


_streams: OrderedDict[Hashable, _Stream[Any]] = OrderedDict()
_using = threading.Lock()


def drawn_once(
    key: Hashable, draw: Callable[[], Iterator[dict[str, Size]]]
) -> Iterator[dict[str, Size]]:
    """The shapes of the endless iterator `draw()`, cached by `key`. `draw` must return equal shapes
    for equal keys."""
    with _using:
        stream = _streams.pop(key, None)
        if stream is None:
            stream = _Stream(draw())
        _streams[key] = stream
        if len(_streams) > _MOST_STREAMS:
            _streams.popitem(last=False)
    return map(stream.shape, itertools.count())


def key_of(*values: Mapping[str, Any] | Hashable) -> Hashable:
    """A key of mappings and other values."""
    return tuple(tuple(v.items()) if isinstance(v, Mapping) else v for v in values)
