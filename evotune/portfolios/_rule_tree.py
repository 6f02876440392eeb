"""Learns a rule from measured cases: a small decision tree, whose leaves name a kernel or PyTorch.

A leaf names a kernel only if the kernel won every case of the leaf that it can run. Each leaf costs
a fixed share of the mean speedup, so a split must gain more than that, and the tree stays small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from evotune.portfolios.points import Point, independent_features
from evotune.trial import Value

_LEAF = 0.003
"""The price of a leaf: so much of the ln of the mean speedup."""


_MOST_BORDERS = 32
"""Of each size so many borders are tried at a node, spread over its cases."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The cases of a leaf and the best kernel for all of them; None: PyTorch serves them.

    `above`, `upto`: the bounds of features that the way to the leaf sets: above < feature <= upto.
    """

    kernel: int | None
    points: tuple[Point, ...]
    above: Mapping[str, int] = field(default_factory=dict)
    upto: Mapping[str, int] = field(default_factory=dict)


def learnt_leaves(points: Sequence[Point], kernels: Sequence[int]) -> list[Leaf]:
    """The leaves of the rule that serves the points best with these kernels."""
    if not points:
        return []
    price = _LEAF * sum(point.weight for point in points)
    grower = _Grower(tuple(kernels), tuple(independent_features(points)), price)
    return grower.grown(Leaf(None, tuple(points)))[1]


@dataclass(frozen=True, slots=True)
class _Grower:
    kernels: tuple[int, ...]
    features: tuple[str, ...]
    price: float

    def grown(self, node: Leaf) -> tuple[float, list[Leaf]]:
        """The best tree below the node, and its gain less the price of its leaves. The tree is
        grown by the best single splits, then branches go that are not worth their leaves."""
        gain, kernel = self._best(node.points)
        alone = gain - self.price
        leaf = Leaf(kernel, node.points, node.above, node.upto)
        if gain >= sum(p.weight * max([0.0, *map(p.gain, self.kernels)]) for p in node.points):
            return alone, [leaf]  # no split can gain more
        split = max(self._splits(node), key=self._gain_of, default=None)
        if split is None:
            return alone, [leaf]
        halves = [self.grown(half) for half in split]
        together = sum(value for value, _ in halves)
        if together <= alone + 1e-12:
            return alone, [leaf]
        return together, [found for _, leaves in halves for found in leaves]

    def _best(self, points: Sequence[Point]) -> tuple[float, int | None]:
        best: tuple[float, int | None] = (0.0, None)
        for kernel in self.kernels:
            scores = [point.scores[kernel] for point in points]
            if all(score is None or score.won for score in scores):
                gain = sum(point.weight * point.gain(kernel) for point in points)
                if gain > best[0] + 1e-12:
                    best = gain, kernel
        return best

    def _gain_of(self, halves: tuple[Leaf, Leaf]) -> tuple[float, int]:
        """Of equal splits the most even one: a lost case inside is then found with fewer leaves."""
        gain = sum(self._best(half.points)[0] for half in halves)
        return round(gain, 9), min(len(half.points) for half in halves)

    def _splits(self, node: Leaf) -> Iterator[tuple[Leaf, Leaf]]:
        for name in node.points[0].place.fixed:
            values = list(dict.fromkeys(_text(p.place.fixed.get(name)) for p in node.points))
            for value in values if len(values) > 2 else values[:1]:
                mine = tuple(p for p in node.points if _text(p.place.fixed.get(name)) == value)
                rest = tuple(p for p in node.points if _text(p.place.fixed.get(name)) != value)
                if mine and rest:
                    yield tuple(  # type: ignore[misc]
                        Leaf(None, some, node.above, node.upto) for some in (mine, rest)
                    )
        for name in self.features:
            values_of = sorted({point.features[name] for point in node.points})
            pairs = list(itertools.pairwise(values_of))
            for low, high in pairs[:: 1 + len(pairs) // _MOST_BORDERS]:
                border = min(max(math.isqrt(low * high), low), high - 1)
                below = tuple(p for p in node.points if p.features[name] <= border)
                over = tuple(p for p in node.points if p.features[name] > border)
                yield (
                    Leaf(None, below, node.above, {**node.upto, name: border}),
                    Leaf(None, over, {**node.above, name: border}, node.upto),
                )


def _text(value: Value | None) -> str:
    return repr(value)
