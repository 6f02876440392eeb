"""Shapes on which attention over packed and over paged sequences is checked beside the shapes of a
space. Random ones are drawn so that each pair of classes of sizes is met."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from evotune.problems._pair_cover import (
    COARSE,
    MODEL,
    MODELS,
    PairCover,
    SizeClass,
    Sizes,
    count_classes,
    head_classes,
    length_classes,
)

Made = Callable[[Sizes], Sizes]
"""The sizes of a case that fits the kept ones, for drawn sizes."""

_SCORES = 1 << 18  # heads * rows * longest_k
_ROWS = 1 << 14  # of queries and of keys, over all heads
_SPECIAL_EVERY = 4
_SPECIAL_COST = 8
_MOST_OWN = 10
_PAGE_SIZES = (1, 8, 16, 32, 64, 128, 256)
_MANY_PAGES = 33_000  # more than 15 bits count
_MOST_SLOTS = 1 << 20  # pages * page_size * kv_heads
_REDUCED = (
    *("sequences", "kv_heads", "group", "tokens_k", "tokens_q"),
    *("longest", "longest_k", "longest_q", "queries"),
)


def packed_edges() -> Iterator[Sizes]:
    """Small shapes for every candidate of a search."""
    for sequences, kv_heads, group, tokens, longest in (
        (1, 3, 1, (1, 1), (1, 1)),
        (5, 2, 2, (77, 131), (33, 65)),
        (9, 1, 8, (20, 300), (7, 129)),
        (4, 2, 1, (200, 31), (129, 17)),
    ):
        found = {"sequences": sequences, "kv_heads": kv_heads, "group": group}
        found |= zip(("tokens_q", "tokens_k"), tokens, strict=True)
        yield found | dict(zip(("longest_q", "longest_k"), longest, strict=True))


def paged_edges(page: int) -> Iterator[Sizes]:
    """The same, for pages of this size."""
    names = ("sequences", "queries", "kv_heads", "group", "longest")
    for sizes in (
        (1, 1, 1, 1, 1),
        (3, 1, 2, 3, 3 * page + 1),
        (5, 4, 1, 8, 4 * page),
        (2, 7, 4, 1, 2 * page + 9),
    ):
        found = dict(zip(names, sizes, strict=True))
        longest = max(found["longest"], found["queries"])
        yield {**found, "longest": longest, "page_size": page}


def packed_shapes(
    rng: random.Random, own: Sequence[Mapping[str, int]], kept: Collection[str], made: Made
) -> Iterator[Sizes]:
    """Sizes of packed sequences, without end. `own` are those of the space's cases; `kept` are
    names of sizes that `made` replaces."""
    long_sides = [
        {"sequences": 18, "longest_q": 517, "longest_k": 777, "tokens_q": 8209, "tokens_k": 8300},
        {"sequences": 40, "longest_q": 9, "longest_k": 801, "tokens_q": 300, "tokens_k": 12_001},
        {"sequences": 33, "longest_q": 601, "longest_k": 9, "tokens_q": 9001, "tokens_k": 250},
    ]
    special = [{**each, "kv_heads": 1, "group": 1} for each in long_sides]
    changes = [{"sequences": rng.randint(41, 70)}]
    return _shapes(rng, _packed_classes(own), own, special, changes, kept, made)


def paged_shapes(
    rng: random.Random, own: Sequence[Mapping[str, int]], kept: Collection[str], made: Made
) -> Iterator[Sizes]:
    """Sizes of paged sequences, as `packed_shapes` gives them."""
    page = own[0]["page_size"] if "page_size" in kept else 1
    alone = {"queries": 1, "kv_heads": 1, "group": 1, "page_size": page}
    sequences = rng.randint(9, 12)
    special = [{**alone, "sequences": 9, "longest": rng.randint(4097, 5000)}]
    if _MANY_PAGES * page <= _MOST_SLOTS:
        longest = page * (_MANY_PAGES // sequences + 1)
        special.append({**alone, "sequences": sequences, "longest": longest})
    changes: list[Sizes] = [{"queries": n} for n in (1, 2, 16)]
    classes = _paged_classes(own, own_page="page_size" in kept)
    return _shapes(rng, classes, own, special, changes, kept, made)


def _shapes(  # noqa: PLR0917
    rng: random.Random,
    classes: Iterator[SizeClass],
    own: Sequence[Mapping[str, int]],
    special: list[Sizes],
    changes: Sequence[Sizes],
    kept: Collection[str],
    made: Made,
) -> Iterator[Sizes]:
    """Every fourth shape, until these are used up, is one of the `own` ones with one size changed,
    or a `special` one; all others are those of a cover."""

    def settled(sizes: Sizes, asked: Collection[str], cost: int) -> Sizes | None:
        found = made(sizes)
        bound = {*asked, *kept, *(("kv_heads", "group") if "heads" in kept else ())}
        if "kv_heads" in kept:
            bound.add("kv_heads")
        for name in _REDUCED:
            over = _over(found, cost)
            if over > 1 and name in found and name not in bound:
                found = made({**found, name: max(1, int(found[name] / over))})
        return found if _over(found, cost) <= 1 or set(kept) - {"page_size", "head_dim"} else None

    cover = PairCover(rng, list(classes), settled)
    changed = list(_changed(rng, own, changes))
    waiting = [*special, *rng.sample(changed, min(len(changed), _MOST_OWN))]
    rng.shuffle(waiting)
    covered, number = iter(cover), 0
    while True:
        found = None
        if waiting and number % _SPECIAL_EVERY == 0:
            asked = waiting.pop()
            found = made(asked) if asked in special else settled(asked, (), _SPECIAL_COST)
            if found is not None:
                cover.met(found)
        found = found or next(covered)
        number += 1
        if found is not None:
            yield found


def _over(sizes: Sizes, cost: int) -> float:
    """How many times the shape is too large; at most 1 where it is not."""
    if "longest" in sizes:
        rows, keys = (sizes["sequences"] * sizes[name] for name in ("queries", "longest"))
        longest = sizes["longest"]
        if keys * sizes["kv_heads"] > _MOST_SLOTS:
            return keys * sizes["kv_heads"] / _MOST_SLOTS
    else:
        rows, keys, longest = (sizes[name] for name in ("tokens_q", "tokens_k", "longest_k"))
    heads = sizes["kv_heads"] * sizes["group"]
    all_rows = heads * rows + sizes["kv_heads"] * keys
    return max(heads * rows * longest / (cost * _SCORES), all_rows / (cost * _ROWS))


def _changed(
    rng: random.Random, own: Sequence[Mapping[str, int]], changes: Sequence[Sizes]
) -> Iterator[Sizes]:
    """The space's own sizes with one size changed."""
    for sizes in own:
        heads, kv_heads = rng.choice(MODELS)
        further: list[Sizes] = [{"kv_heads": kv_heads, "group": heads // kv_heads}]
        further += [{"sequences": sizes["sequences"] + 1}, {"sequences": 1}]
        for name in ("longest", "longest_q", "longest_k"):
            further += [{name: sizes[name] + n} for n in (-1, 1) if sizes.get(name, 0) > 1]
        for change in (*changes, *further):
            if any(sizes.get(name) != size for name, size in change.items()):
                yield {**sizes, **change}


def _sequences() -> Iterator[SizeClass]:
    for each in count_classes("sequences", ((1, 1), (2, 4), (5, 8), (9, 9), (10, 17), (18, 40))):
        yield replace(each, level=COARSE)


def _packed_classes(own: Sequence[Mapping[str, int]]) -> Iterator[SizeClass]:
    yield from _sequences()
    yield from head_classes(_heads(own))
    for side in ("q", "k"):
        yield from length_classes(f"longest_{side}", long_cost=4, exact_cost=_exact_cost)
        for each in count_classes(f"tokens_{side}", ((1, 64), (65, 512), (513, 4096))):
            yield replace(each, level=MODEL)
    yield from _several_rows("longest_q", "longest_k")


def _paged_classes(own: Sequence[Mapping[str, int]], *, own_page: bool) -> Iterator[SizeClass]:
    yield from _sequences()
    yield from head_classes(_heads(own))
    yield from length_classes("longest", long_cost=4, exact_cost=_exact_cost)
    queries = ((1, 1), (2, 2), (3, 8), (9, 15), (16, 16), (17, 32))
    for place, each in enumerate(count_classes("queries", queries)):
        yield replace(each, level=COARSE) if place == 0 else each
    yield from _several_rows("queries", "longest")
    if not own_page:
        sizes = dict.fromkeys((*_PAGE_SIZES, *(each["page_size"] for each in own)))
        yield from count_classes("page_size", [(size, size) for size in sizes])


def _several_rows(rows: str, keys: str) -> Iterator[SizeClass]:
    """One row, and several rows, with many keys."""
    for name, low, high, least in (("one row, many keys", 1, 1, 601), ("several rows", 5, 16, 65)):
        yield SizeClass(
            name,
            frozenset((rows, keys)),
            lambda s, a=low, b=high, k=least: a <= s[rows] <= b and s[keys] >= k,  # type: ignore[misc]
            lambda rng, a=low, b=high, k=least: {  # type: ignore[misc]
                rows: rng.randint(a, b),
                keys: k + rng.randint(0, k // 4),
            },
            COARSE,
            2.0,
            4,
        )


def _heads(own: Sequence[Mapping[str, int]]) -> list[tuple[int, int]]:
    return [(sizes["kv_heads"] * sizes["group"], sizes["kv_heads"]) for sizes in own]


def _exact_cost(length: int) -> int:
    return 1 + length // 600
