"""Classes of lengths, of counts and of heads, from which cases are drawn by pairs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from evotune.problems._pair_cover import SizeClass, Sizes

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
    """Classes of `kv_heads` and of `group`, and of both as models have them. `own`: heads of
    queries and of keys of the space's cases."""
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
    """A class of one size."""

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
