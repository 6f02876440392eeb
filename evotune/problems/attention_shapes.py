"""Shapes on which attention is checked in addition to the shapes of a space.

These shapes have no head size, because a binary is made for one head size. `scale` is the
softmax's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evotune.problems.pair_cover import (
    ALONE,
    COARSE,
    FINE,
    MODEL,
    MODELS,
    WEIGHTS,
    WORD,
    PairCover,
    SizeClass,
    Sizes,
    beyond,
    count_classes,
    head_classes,
    last_odd,
    length_classes,
    near,
    other_scalar,
    past_words,
    round_beyond,
)
from evotune.trial import Value

Shape = dict[str, Value]
Lengths = dict[str, Any]
_Special = tuple[Sizes, int, tuple[str, ...]]
"""Sizes, the most scores, and the sizes that are not reduced for it."""

_ORDINARY_SCORES = 1 << 17  # batch * heads * seq_len_q * seq_len_k: 362 x 362 with one head
_ORDINARY_ROWS = 1 << 13  # of queries and of keys, over batches and heads
_OWN_SCORES = 1 << 19  # 2 heads of 512 x 512
_LARGE_SCORES = 1 << 26  # 8192 x 8192 with one head
_MOST_HEADS = 40
_MOST_OWN = 10
_LARGE_EVERY = 3
_OTHER_SCALES = (0.3, 0.6)  # 0.6 only if 0.3 is near the usual scale
_REDUCED = ("batch", "kv_heads", "group", "seq_len_k", "seq_len_q")
"""The sizes in the order in which they are reduced if a shape is too large."""


def edge_shapes(*, causal: bool, usual_scale: float, kept: Mapping[str, int]) -> tuple[Shape, ...]:
    """Five shapes for every candidate of a search. They are small, but have more batches, heads and
    heads a group than most spaces, one or many keys, lengths that end within a tile or one before
    its end, and once another softmax scale. `kept` are sizes that no shape may change."""
    # Row 0 of a causal case sees one key: only many rows see many keys.
    long: Shape = {"seq_len": 319} if causal else {"seq_len_q": 1, "seq_len_k": 1087}
    scale = _OTHER_SCALES[abs(math.log(_OTHER_SCALES[0] / usual_scale)) < 0.3]
    shapes: tuple[Shape, ...] = (
        {"batch": 3, "heads": 40, "kv_heads": 40, "seq_len": 1},
        {"batch": 3, "heads": 9, "kv_heads": 3, "seq_len": 63},
        {"batch": 2, "heads": 10, "kv_heads": 2, "seq_len_q": 33, "seq_len_k": 130},
        {"batch": 1, "heads": 8, "kv_heads": 1, "seq_len_q": 145, "seq_len_k": 29, "scale": scale},
        {"batch": 1, "heads": 1, "kv_heads": 1, **long},
    )
    return tuple(keeping(shape, kept) for shape in shapes)


def random_shapes(
    rng: random.Random,
    own: Sequence[Mapping[str, int]],
    *,
    longest: int,
    causal: bool,
    usual_scale: float,
    kept: Mapping[str, int],
) -> Iterator[Shape]:
    """An endless iterator over shapes. About the first hundred meet every pair of classes of sizes
    that makes sense (`_classes`). Until the `own` shapes are used up, every third shape is one of
    these with one size changed, or large. Every second shape has an unusual scale.

    `own` are the sizes of the space's cases, `longest` is the largest length of all; `kept` are
    sizes that no shape may change.
    """
    heads = [(sizes["heads"], sizes["kv_heads"]) for sizes in own]
    fitting = _Fitting(rng, kept, causal=causal)
    cover = PairCover(rng, list(_classes(heads, own, causal=causal)), fitting.settled)
    special = [*_changed(rng, own, causal=causal), *_large(rng, longest, causal)]
    rng.shuffle(special)
    covered = iter(cover)
    number = 0
    while True:
        sizes = None
        if special and number % _LARGE_EVERY == 0:
            sizes = fitting.special(*special.pop())
            if sizes is not None:
                cover.met(sizes)
        sizes = sizes or next(covered)
        if sizes is not None:
            shape = _shape(sizes)
            if number % 2:
                shape["scale"] = other_scalar(rng, usual_scale)
            yield shape
        number += 1


def far_shapes(
    rng: random.Random, layouts: Sequence[str], kept: Mapping[str, int]
) -> Iterator[tuple[Shape, str]]:
    """Small shapes with two batches, and with two heads, for each of these layouts."""
    for layout in rng.sample(layouts, len(layouts)):
        for batch, heads in ((2, 1), (1, 2)):
            lengths = {name: rng.randint(20, 90) for name in ("seq_len_q", "seq_len_k")}
            yield {"batch": batch, "heads": heads, "kv_heads": heads, **lengths, **kept}, layout


def keeping(shape: Shape, kept: Mapping[str, int]) -> Shape:
    """The shape with its sizes replaced by the kept ones. `seq_len` stands for both lengths."""
    if "seq_len" in shape:
        both = shape.pop("seq_len")
        shape |= {"seq_len_q": both, "seq_len_k": both}
    shape |= kept
    heads, kv_heads = int(shape["heads"]), int(shape["kv_heads"])
    if "kv_heads" not in kept:
        shape["kv_heads"] = math.gcd(heads, kv_heads)
    elif "heads" not in kept:
        shape["heads"] = kv_heads * max(1, heads // kv_heads)
    return shape


class _Fitting:
    """Makes drawn sizes into those of a shape that is allowed and not too large."""

    def __init__(self, rng: random.Random, kept: Mapping[str, int], *, causal: bool) -> None:
        self._rng = rng
        self._kept = kept
        self._causal = causal
        self._floor = math.prod(kept.get(name, 1) for name in ("batch", "seq_len_q", "seq_len_k"))
        self._floor *= kept.get("heads", kept.get("kv_heads", 1))

    def settled(self, sizes: Sizes, asked: Collection[str], cost: int) -> Sizes | None:
        """The sizes with the kept ones. Those that were not requested are reduced until the shape
        is within `cost` times the usual limit; None if that is impossible.

        A causal mask hides the keys after a query, so requested keys get as many rows.
        """
        found, bound = dict(sizes), {*asked, *self._kept}
        queries, keys = ("seq_len_q" in bound), ("seq_len_k" in bound)
        if self._causal and not (queries and keys):
            if queries:
                found["seq_len_k"] = max(1, found["seq_len_q"] - self._rng.choice((0, 0, 0, 1, 2)))
            else:
                more = self._rng.choice((0, 0, 0, 1, 2, found["seq_len_k"]))
                found["seq_len_q"] = found["seq_len_k"] + more
            bound |= {"seq_len_q", "seq_len_k"} if queries or keys else set()
        found = self._keeping(found, asked)
        if "heads" in self._kept:
            bound |= {"kv_heads", "group"}
        for name in _REDUCED:
            over = self._over(found, cost)
            if over > 1 and name not in bound:
                found[name] = max(1, int(found[name] / over))
        return found if self._over(found, cost) <= 1 else None

    def special(self, sizes: Sizes, most_scores: int, fixed: Collection[str]) -> Sizes | None:
        """The sizes with the kept ones, reduced to this many scores, except for those that are
        fixed."""
        found = self._keeping(sizes, fixed)
        bound = {*fixed, *self._kept, *(("kv_heads", "group") if "heads" in self._kept else ())}
        rows = () if self._causal else ("seq_len_q",)
        for name in (*rows, *_REDUCED):
            over = _scores(found) / most_scores
            if over > 1 and name not in bound:
                found[name] = max(1, int(found[name] / over))
        return found if _scores(found) <= max(most_scores, self._floor) else None

    def _keeping(self, sizes: Sizes, asked: Collection[str]) -> Sizes:
        found = {name: self._kept.get(name, size) for name, size in sizes.items()}
        if "heads" in self._kept:
            heads = self._kept["heads"]
            divisors = [n for n in range(1, heads + 1) if heads % n == 0]
            if "kv_heads" not in self._kept:
                wanted = heads // found["group"] if "kv_heads" not in asked else found["kv_heads"]
                fits = wanted in divisors and (
                    "kv_heads" in asked or ("group" in asked and heads % found["group"] == 0)
                )
                found["kv_heads"] = wanted if fits else self._rng.choice(divisors)
            found["group"] = heads // found["kv_heads"]
        return found

    def _over(self, sizes: Sizes, cost: int) -> float:
        """By what factor the shape is too large; at most 1 if it is not."""
        most = max(cost * _ORDINARY_SCORES * (2 if self._causal else 1), self._floor)
        rows = sizes["group"] * sizes["seq_len_q"] + sizes["seq_len_k"]
        rows *= sizes["batch"] * sizes["kv_heads"]
        return max(_scores(sizes) / most, rows / max(cost * _ORDINARY_ROWS, 2 * self._floor))


def _classes(
    heads: Sequence[tuple[int, int]], own: Sequence[Mapping[str, int]], *, causal: bool
) -> Iterator[SizeClass]:
    """The classes of the sizes. With a causal mask, keys are of a class if a row sees them all."""
    for each in count_classes("batch", ((1, 1), (2, 2), (3, 4), (5, 9))):
        yield replace(each, level=COARSE, weight=1.5)
    yield from head_classes(list(dict.fromkeys(heads)))
    rows: Lengths = {
        "long_cost": 7 if causal else 4,
        "exact_cost": lambda n: -(-n * n // (2 * _ORDINARY_SCORES)) if causal else 1 + n // 600,
        "long_level": MODEL if causal else COARSE,
    }
    yield from length_classes("seq_len_q", **rows)
    for each in length_classes("seq_len_k", **rows):
        yield _seen(each) if causal else each
    nine = next(count_classes("batch", ((9, 9),)))
    yield replace(nine, level=ALONE, weight=WEIGHTS[ALONE])
    for group in (2, 3, 4, 5, 6, 7, 8, 16):  # a row that reads another group's keys shows
        yield _heads_and_lengths(2, group, 2, 40, cost=1)
    for kv_heads, group in ((5, 1), (1, 8)) if causal else ():  # costly, so few
        yield _heads_and_lengths(kv_heads, group, 601, 640, cost=13)
    yield from _pairs_of_lengths(causal=causal)


def _seen(keys: SizeClass) -> SizeClass:
    """The class of keys, if a row sees them all."""

    def holds(sizes: Mapping[str, int]) -> bool:
        return sizes["seq_len_k"] <= sizes["seq_len_q"] and keys.holds(sizes)

    return replace(keys, reads=frozenset(("seq_len_q", "seq_len_k")), holds=holds)


def _heads_and_lengths(kv_heads: int, group: int, low: int, high: int, *, cost: int) -> SizeClass:
    """At least this many key heads and groups of this size, with at least `low` rows and keys."""

    def holds(sizes: Mapping[str, int]) -> bool:
        long = min(sizes["seq_len_q"], sizes["seq_len_k"]) >= low
        return long and sizes["kv_heads"] >= kv_heads and sizes["group"] == group

    def draw(rng: random.Random) -> Sizes:
        length = rng.randint(low, high)
        return {"seq_len_q": length, "seq_len_k": length, "kv_heads": kv_heads, "group": group}

    sizes = frozenset(("seq_len_q", "seq_len_k", "kv_heads", "group"))
    name = f"{low} or more, {kv_heads} key heads, groups of {group}"
    return SizeClass(name, sizes, holds, draw, ALONE, WEIGHTS[ALONE], cost)


def _pairs_of_lengths(*, causal: bool) -> Iterator[SizeClass]:
    """Classes of rows and keys together."""

    def made(
        name: str,
        holds: Callable[[int, int], bool],
        span: tuple[int, int],
        draw: Callable[[int, random.Random], tuple[int, int]],
        *,
        level: int = COARSE,
        cost: int = 1,
    ) -> SizeClass:
        """`draw` gives rows and keys for a length of the span."""

        def drawn(rng: random.Random) -> Sizes:
            lengths = draw(rng.randint(*span), rng)
            return dict(zip(("seq_len_q", "seq_len_k"), lengths, strict=True))

        sizes = frozenset(("seq_len_q", "seq_len_k"))
        holding = lambda s: holds(s["seq_len_q"], s["seq_len_k"])  # noqa: E731
        return SizeClass(name, sizes, holding, drawn, level, WEIGHTS[level], cost)

    ordinary = (9, 150)
    yield made(
        *("as many rows as keys", lambda q, k: q == k > 100, (101, 300)),
        lambda n, rng: (n, n),
        level=MODEL,
    )
    yield made(
        *("twice as many rows", lambda q, k: q == 2 * k > 2, ordinary),
        lambda n, rng: (2 * n, n),
        level=ALONE,
    )
    yield made(
        *("at least twice as many rows", lambda q, k: q >= 2 * k > 2, (2, 80)),
        lambda n, rng: (2 * n + rng.randint(0, 2 * n), n),
        level=FINE,
    )
    yield made(
        *("more rows than keys", lambda q, k: k < q < 2 * k, ordinary),
        lambda n, rng: (n + rng.randint(1, n - 1), n),
        level=MODEL,
    )
    yield made(
        *("fewer rows than keys", lambda q, k: 1 < q < k, ordinary),
        lambda n, rng: (n, n + rng.randint(1, 3 * n)),
        level=MODEL,
    )
    low, high = (17, 64) if causal else (5, 16)
    yield made(
        *("several rows", lambda q, k: low <= q <= high and k >= low, (low, high)),
        lambda n, rng: (n, n if causal else 10 * n),
        cost=2,
    )
    if causal:
        yield made(
            *("hidden keys, over 600", lambda q, k: q < 600 < k, (2, 64)),
            lambda n, rng: (n, rng.randint(601, 1200)),
        )
    else:
        yield made(
            *("one row, many keys", lambda q, k: q == 1 and k > 600, (601, 1200)),
            lambda n, rng: (1, n),
            cost=4,
        )


def _changed(
    rng: random.Random, own: Sequence[Mapping[str, int]], *, causal: bool
) -> list[_Special]:
    """The space's own shapes with one size changed, which stays when others are reduced."""
    found: list[_Special] = []
    for sizes in own:
        whole = {name: sizes[name] for name in ("batch", "kv_heads", "seq_len_q", "seq_len_k")}
        whole["group"] = sizes["heads"] // sizes["kv_heads"]
        q, k = whole["seq_len_q"], whole["seq_len_k"]
        changes: list[Sizes] = [{"batch": n} for n in (1, whole["batch"] + 1)]
        heads, kv_heads = rng.choice(MODELS)
        changes.append({"kv_heads": kv_heads, "group": heads // kv_heads})
        changes += [{"seq_len_q": n} for n in (1, q - 1, q + 1)]
        if causal:
            changes += [{"seq_len_q": k + n, "seq_len_k": k + n} for n in (-1, 1)]
        else:
            changes += [{"seq_len_k": n} for n in (k - 1, k + 1)]
        found += [
            ({**whole, **change}, _OWN_SCORES, tuple(change))
            for change in changes
            if all(size >= 1 for size in change.values()) and {**whole, **change} != whole
        ]
    return rng.sample(found, min(len(found), _MOST_OWN))


def _scores(sizes: Mapping[str, int]) -> int:
    names = ("batch", "kv_heads", "group", "seq_len_q", "seq_len_k")
    return math.prod(sizes[name] for name in names)


def _shape(sizes: Mapping[str, int]) -> Shape:
    names = ("batch", "kv_heads", "seq_len_q", "seq_len_k")
    found: Shape = {name: sizes[name] for name in names}
    return {**found, "heads": sizes["kv_heads"] * sizes["group"]}


def _large(rng: random.Random, longest: int, causal: bool) -> list[_Special]:
    """Shapes with many keys, many queries or many rows.

    - Keys: the space's longest odd length, one well beyond it and one past 16 bits.
    - Queries: the same, but near the longest length instead of just that.
    - Of keys and queries well beyond the longest length, one number is odd and the other is round.
    - Rows (over batches, heads and length, of queries or of keys): past 16 bits.

    A causal mask hides the keys after a query. So with a causal mask many keys come with as many
    queries, and the number of keys fits in 16 bits.
    """

    def drawn(batch: int, heads: int, queries: int, keys: int) -> _Special:
        sizes = {"batch": batch, "kv_heads": heads, "group": 1}
        sizes |= {"seq_len_q": queries, "seq_len_k": keys}
        return sizes, _LARGE_SCORES, _REDUCED

    def few(most: int = 24) -> int:
        return rng.randint(16, most)

    found = []
    far = [beyond(rng, longest), round_beyond(rng, longest)]
    rng.shuffle(far)
    most = near(rng, math.isqrt(_LARGE_SCORES)) if causal else max(far)
    for pair in ((last_odd(longest), near(rng, longest)), far):
        keys, queries = (min(length, most) for length in pair)
        found.append(drawn(1, 1, keys if causal else few(64), keys))
        found.append(drawn(1, 1, queries, few(64)))
    found.append(drawn(1, 1, past_words(rng), few()))
    if not causal:
        found.append(drawn(1, 1, few(), past_words(rng)))
    for keys_too in (False, True):
        batch, heads = rng.randint(5, 9), rng.randint(33, _MOST_HEADS)
        length = WORD // (batch * heads) + few()
        queries, keys = (few(), length) if keys_too else (length, few())
        found.append(drawn(batch, heads, queries, keys))
    rng.shuffle(found)
    return found


# Layouts of attention's tensors in memory: which strides q, k, v and out have.
#
# The last dimension is always contiguous. Strides count elements. In a layout with gaps, what lies
# between the rows of a tensor belongs to others.
DEFAULT = "bhld"
LAYOUTS: Mapping[str, str] = {
    DEFAULT: "contiguous (batch, heads, length, head_dim)",
    "blhd": "memory is (batch, length, heads, head_dim), as a projection leaves it",
    "packed_qkv": "q, k and v are slices of one (batch, length, heads + 2 kv_heads, head_dim)",
    "mixed": "each tensor has dimensions in an order of its own, and gaps between rows",
}
TENSORS = ("q", "k", "v", "out")
FAR = tuple(f"far_{tensor}" for tensor in TENSORS)
"""Additional layouts for tests. In each the batches of one tensor (its heads if there is one batch)
are more than 2^31 elements apart."""
DIMENSIONS = ("batch", "head", "row")
_GAP = 8
"""Gaps of `mixed` are multiples of this many elements, so that rows stay aligned to 16 bytes."""

Strides = tuple[int, int, int]
"""The strides from one batch, head and row to the next."""


def symbols_of(tensor: str) -> tuple[str, ...]:
    """The names of a tensor's strides: q_stride_batch, q_stride_head, q_stride_row."""
    return tuple(f"{tensor}_stride_{dimension}" for dimension in DIMENSIONS)


def stride_symbols(layout: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The strides of all tensors by their symbols. `sizes` are those of a case."""
    found = {tensor: _strides(layout, tensor, sizes) for tensor in TENSORS}
    return {
        name: stride
        for tensor, strides in found.items()
        for name, stride in zip(symbols_of(tensor), strides, strict=True)
    }


def _strides(layout: str, tensor: str, sizes: Mapping[str, int]) -> Strides:
    of_queries = tensor in ("q", "out")
    batch, columns = sizes["batch"], sizes["head_dim" if tensor in ("q", "k") else "value_dim"]
    heads = sizes["heads" if of_queries else "kv_heads"]
    rows = sizes["seq_len_q" if of_queries else "seq_len_k"]
    if layout == f"far_{tensor}":
        far = (1 << 31) + _GAP
        return (far, rows * columns, columns) if batch > 1 else (heads * far, far, columns)
    if layout == "mixed":
        return _MIXED[tensor](batch, heads, rows, columns)
    row = heads * columns
    if layout == "packed_qkv" and tensor != "out":
        row = sizes["heads"] * sizes["head_dim"]
        row += sizes["kv_heads"] * (sizes["head_dim"] + sizes["value_dim"])
    if layout == DEFAULT or layout in FAR:
        return heads * rows * columns, rows * columns, columns
    return rows * row, columns, row


def _of_q(batch: int, heads: int, rows: int, columns: int) -> Strides:
    """(heads, batch, rows), longer rows."""
    row = columns + _GAP
    return rows * row + _GAP, batch * (rows * row + _GAP), row


def _of_k(batch: int, heads: int, rows: int, columns: int) -> Strides:
    """(batch, rows, heads), longer rows of all heads, and longer heads."""
    head = columns + 2 * _GAP
    row = heads * head + 3 * _GAP
    return rows * row, head, row


def _of_v(batch: int, heads: int, rows: int, columns: int) -> Strides:
    """(rows, batch, heads)."""
    of_batch = heads * columns + 5 * _GAP
    return of_batch, columns, batch * of_batch


def _of_out(batch: int, heads: int, rows: int, columns: int) -> Strides:
    """(batch, heads, rows), all longer."""
    row = columns + 3 * _GAP
    head = rows * row + _GAP
    return heads * head + 2 * _GAP, head, row


_MIXED = {"q": _of_q, "k": _of_k, "v": _of_v, "out": _of_out}
