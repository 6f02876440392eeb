"""Learns a rule from measured cases: small decision trees, whose leaves name a kernel or PyTorch.

Cases with other fixed values (a head size, a mask) have a tree of their own, since no binary serves
both. A leaf names a kernel only if the kernel won every case of the leaf that it can run. Each such
leaf costs a fixed share of the mean speedup, so a split must gain more than that, and the trees
stay small.

A greedy tree misses the splits that gain something only together, as those that cut out one lost
case do. So each tree is the best one of all trees over a grid of borders, found by dynamic
programming: the best tree of a box is a leaf, or the best trees of its halves. Where sizes have
more values than the grid, leaves are then divided again on a finer grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evotune.portfolios.points import Point, independent_features

_LEAF = 0.0015
"""The price of a leaf with a kernel: so much of the ln of the mean speedup."""
_MOST_BOXES = 20_000
"""A grid has at most about so many boxes."""

_Members = NDArray[np.bool_]


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
    features = tuple(independent_features(points))
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(repr(sorted(point.place.fixed.items())), []).append(point)
    return [
        leaf
        for group in groups.values()
        for leaf in _divided(Leaf(None, tuple(group)), tuple(kernels), features, price)
    ]


def _divided(
    whole: Leaf, kernels: tuple[int, ...], features: tuple[str, ...], price: float
) -> Iterator[Leaf]:
    """The leaves of the best tree for the points of `whole`."""
    grid = _Grid(whole.points, kernels, features, price)
    leaves = list(grid.leaves(whole))
    if len(leaves) == 1 or not grid.is_coarse:
        yield from leaves
        return
    for leaf in leaves:
        yield from _divided(leaf, kernels, features, price)


class _Tree(NamedTuple):
    """The best tree of a box: its gain less the price of its leaves, the number of those, and the
    feature and the halves of its first split."""

    value: float
    leaves: int
    kernel: int | None
    split: tuple[str, _Members, _Members] | None = None


class _Grid:
    """The points of a tree, and the borders at which it may divide them."""

    def __init__(
        self,
        points: tuple[Point, ...],
        kernels: tuple[int, ...],
        features: tuple[str, ...],
        price: float,
    ) -> None:
        self._points = points
        self._kernels = kernels
        self._price = price
        self._sizes = {n: np.array([p.features[n] for p in points]) for n in features}
        scores = [[point.scores[kernel] for point in points] for kernel in kernels]
        self._gains = np.array([[p.weight * p.gain(k) for p in points] for k in kernels])
        self._lost = np.array([[s is not None and not s.won for s in row] for row in scores])
        ideal = self._gains.max(axis=0, initial=0.0) if kernels else np.zeros(len(points))
        self._ideal: NDArray[np.float64] = ideal
        varying = {n: np.unique(sizes) for n, sizes in self._sizes.items()}
        varying = {name: values for name, values in varying.items() if len(values) > 1}
        borders = _borders_each(len(varying))
        self.is_coarse = any(len(values) - 1 > borders for values in varying.values())
        self._below = {
            name: [self._sizes[name] <= value for value in _spread(values[:-1], borders)]
            for name, values in varying.items()
        }
        self._known: dict[bytes, _Tree] = {}

    def leaves(self, whole: Leaf) -> Iterator[Leaf]:
        """Of the best tree; their bounds lie inside those of `whole`."""
        return self._leaves(np.ones(len(self._points), dtype=bool), whole.above, whole.upto)

    def _leaves(
        self, box: _Members, above: Mapping[str, int], upto: Mapping[str, int]
    ) -> Iterator[Leaf]:
        tree = self._best(box)
        if tree.split is None:
            inside = tuple(self._points[number] for number in np.flatnonzero(box))
            yield Leaf(tree.kernel, inside, above, upto)
            return
        name, low, high = tree.split
        least, most = (int(self._sizes[name][low].max()), int(self._sizes[name][high].min()))
        border = min(max(math.isqrt(least * most), least), most - 1)
        yield from self._leaves(low, above, {**upto, name: border})
        yield from self._leaves(high, {**above, name: border}, upto)

    def _best(self, box: _Members) -> _Tree:
        key = np.packbits(box).tobytes()
        if key not in self._known:
            self._known[key] = self._found(box)
        return self._known[key]

    def _found(self, box: _Members) -> _Tree:
        best = self._alone(box)
        if self._ideal[box].sum() - self._price <= best.value + 1e-12:
            return best  # no split can gain more
        evenness = 0
        for name, low, high in self._splits(box):
            halves = self._best(low), self._best(high)
            value, leaves = sum(h.value for h in halves), sum(h.leaves for h in halves)
            even = min(int(low.sum()), int(high.sum()))
            ranks = (round(value, 9), -leaves, even)
            # Of equal trees the smallest one, then one that begins with the most even split.
            if ranks > (round(best.value, 9), -best.leaves, evenness):
                best, evenness = _Tree(value, leaves, None, (name, low, high)), even
        return best

    def _splits(self, box: _Members) -> Iterator[tuple[str, _Members, _Members]]:
        for name, borders in self._below.items():
            last = 0
            for below in borders:
                low = box & below
                count = int(low.sum())
                if count not in (last, int(box.sum())):
                    yield name, low, box & ~below
                last = count

    def _alone(self, box: _Members) -> _Tree:
        """A single leaf."""
        best = _Tree(0.0, 0, None)
        for row, kernel in enumerate(self._kernels):
            value = float(self._gains[row][box].sum()) - self._price
            if value > best.value + 1e-12 and not self._lost[row][box].any():
                best = _Tree(value, 1, kernel)
        return best


def _borders_each(features: int) -> int:
    """How many borders each feature may have, so that the grid has no more than its boxes."""
    borders = 1
    while features and ((borders + 2) * (borders + 3) / 2) ** features <= _MOST_BOXES:
        borders += 1
    return borders


def _spread(values: NDArray[np.int64], count: int) -> Iterable[int]:
    """At most `count` of the values, spread evenly over them."""
    places = np.unique(np.linspace(0, len(values) - 1, min(count, len(values))).round())
    return [int(values[int(place)]) for place in places]
