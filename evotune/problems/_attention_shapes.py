"""Shapes that attention is checked on beside the shapes of a space.

A shape here has no head size, since a binary is made for one head size; `scale` is the softmax's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evotune.problems._lengths import (
    LENGTH_CLASSES,
    WORD,
    Remainders,
    beyond,
    last_odd,
    near,
    other_scalar,
    past_words,
    round_beyond,
)
from evotune.trial import Value

Shape = dict[str, Value]

_ORDINARY_SCORES = 3 << 19  # batch * heads * seq_len_q * seq_len_k: 1254 x 1254 with one head
_WIDE_SCORES = 1 << 19  # the same for many heads: 120 x 120 with batch * heads = 36
_LARGE_SCORES = 1 << 26  # 8192 x 8192 with one head
_MOST_HEADS = 40
_BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 9, 1)
_GROUPS = (1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 16, 0)  # 0: one of 9 to 15
_HEADS = ((4, 8), (9, 16), (33, _MOST_HEADS))  # where a group is one head
_SHORT = (1, 15, 17, 31, 33, 47, 49, 63, 65, 79, 81, 127, 129)
_OTHER_SCALES = (0.3, 0.6)  # 0.6 only if 0.3 is near the usual scale


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
    rng: random.Random, *, longest: int, causal: bool, usual_scale: float, kept: Mapping[str, int]
) -> Iterator[Shape]:
    """Shapes without end. The first 36 cover every class, the first 24 all the large shapes; sizes
    and order are random. Every second shape has another scale than the usual one.

    `longest` is the space's largest length; `kept` are sizes that no shape may change.
    """
    for number, drawn in enumerate(_drawn(rng, longest, causal)):
        shape = drawn.fitted(kept, rng)
        if shape is not None:
            if number % 2:
                shape["scale"] = other_scalar(rng, usual_scale)
            yield shape


def far_shapes(
    rng: random.Random, layouts: Sequence[str], kept: Mapping[str, int]
) -> Iterator[tuple[Shape, str]]:
    """Small shapes of two batches, and of two heads, for each of these layouts."""
    for layout in rng.sample(layouts, len(layouts)):
        for batch, heads in ((2, 1), (1, 2)):
            lengths = {name: rng.randint(20, 90) for name in ("seq_len_q", "seq_len_k")}
            yield {"batch": batch, "heads": heads, "kv_heads": heads, **lengths, **kept}, layout


def keeping(shape: Shape, kept: Mapping[str, int]) -> Shape:
    """The shape with the kept sizes; `seq_len` stands for both lengths."""
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


@dataclass(slots=True)
class _Drawn:
    batch: int
    kv_heads: int
    group: int
    seq_len_q: int
    seq_len_k: int
    most_scores: int = _ORDINARY_SCORES

    def fitted(self, kept: Mapping[str, int], rng: random.Random) -> Shape | None:
        """The shape with the kept sizes, and with other sizes reduced until it is within the limit;
        None when it still is not."""
        if "heads" in kept:
            heads = kept["heads"]
            divisors = [n for n in range(1, heads + 1) if heads % n == 0]
            self.kv_heads = kept.get("kv_heads", rng.choice(divisors))
            self.group = heads // self.kv_heads
        for name in ("batch", "kv_heads", "seq_len_q", "seq_len_k"):
            if name in kept:
                setattr(self, name, kept[name])
        ordinary = self.most_scores == _ORDINARY_SCORES
        for name in ("batch", "kv_heads", "group", "seq_len_k", "seq_len_q") if ordinary else ():
            heads_kept = name in ("kv_heads", "group") and "heads" in kept
            if self.scores > self.most_scores and not (name in kept or heads_kept):
                size = getattr(self, name)
                setattr(self, name, max(1, size * self.most_scores // self.scores))
        if self.scores > self.most_scores and not (kept and ordinary):
            return None
        return {
            "batch": self.batch,
            "heads": self.kv_heads * self.group,
            "kv_heads": self.kv_heads,
            "seq_len_q": self.seq_len_q,
            "seq_len_k": self.seq_len_k,
        }

    @property
    def scores(self) -> int:
        return self.batch * self.kv_heads * self.group * self.seq_len_q * self.seq_len_k


def _drawn(rng: random.Random, longest: int, causal: bool) -> Iterator[_Drawn]:
    remainders = Remainders(rng)
    classes = (
        _large(rng, longest, causal),
        _wide(rng, least=2),
        _long(rng, remainders),
    )
    while any(classes):
        yield from (some.pop() for some in classes if some)
    while True:
        yield from _wide(rng, least=1)[:1]
        yield from _long(rng, remainders)[-1:]
        for length in (remainders.draw(), remainders.draw()):
            yield _Drawn(1, 1, rng.randint(1, 2), length, length)


def _wide(rng: random.Random, *, least: int) -> list[_Drawn]:
    """Shapes with many batches, heads and heads a group, and short lengths. `least` is the least
    number of keys and of heads of keys. Where it is 2, each group shows a kernel that takes another
    group's keys, or one key too few."""
    heads = iter(_HEADS)
    found = []
    groups = [group or rng.randint(9, 15) for group in _GROUPS]
    for group, batch in zip(groups, rng.sample(_BATCHES, len(_BATCHES)), strict=True):
        kv_heads = rng.randint(least, min(5, _MOST_HEADS // group))
        if group == 1:
            kv_heads = rng.randint(*next(heads))
        longest = math.isqrt(_WIDE_SCORES // (batch * group * kv_heads))
        lengths = [rng.choice(_SHORT), rng.randint(2, 130)]
        queries, keys = (max(least, min(rng.choice(lengths), longest)) for _ in range(2))
        found.append(_Drawn(batch, kv_heads, group, queries, keys))
    rng.shuffle(found)
    return found


def _long(rng: random.Random, remainders: Remainders) -> list[_Drawn]:
    """Shapes with few heads. One of every class of lengths has as many queries as keys; half as
    many others have queries of one class, and keys of any remainder."""
    pairs = [(length, length) for length in (draw(rng) for draw in LENGTH_CLASSES)]
    for _ in range(len(LENGTH_CLASSES) // 2):
        pairs.append((rng.choice(LENGTH_CLASSES)(rng), remainders.draw()))
    heads = ((1, 1), (1, 2), (2, 1), (1, 3))
    found = [_Drawn(rng.randint(1, 2), *rng.choice(heads), *pair) for pair in pairs]
    rng.shuffle(found)
    return found


def _large(rng: random.Random, longest: int, causal: bool) -> list[_Drawn]:
    """Shapes with many keys, many queries or many rows.

    - Keys: the space's longest odd length, one well beyond it and one past 16 bits.
    - Queries: the same, but near the longest length instead of just that.
    - Of keys and queries well beyond the longest length, one number is odd and the other is round.
    - Rows (over batches, heads and length, of queries or of keys): past 16 bits.

    A causal mask hides the keys behind a query. So with one, many keys come with as many queries,
    and no number of keys is past 16 bits.
    """

    def drawn(batch: int, heads: int, queries: int, keys: int) -> _Drawn:
        return _Drawn(batch, heads, 1, queries, keys, _LARGE_SCORES)

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
