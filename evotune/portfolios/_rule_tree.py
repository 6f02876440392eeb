"""Learns a rule from measured cases: small decision trees, whose leaves name a kernel or PyTorch.

Cases with other fixed values (a head size, a mask) have a tree of their own, since no binary serves
both. A leaf names a kernel only if the kernel won every case of the leaf that it can run. Each such
leaf costs a fixed share of the mean speedup, so a split must gain more than that, and the trees
stay small.

A greedy tree misses two splits of which neither gains anything alone: together they may cut out a
lost case. So each tree is the best one of all trees over a grid of borders (`_tree_grid.py`). Where
sizes have more values than the grid, leaves are then divided again on a finer grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evotune.portfolios._tree_grid import Grid, Tree
from evotune.portfolios.points import Point, independent_features

_UNIT = 1e-9
"""Of gains: so much of the ln of the mean speedup."""
_LEAF = round(0.0015 / _UNIT)
"""The price of a leaf with a kernel."""


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
    total = sum(point.weight for point in points) or 1.0
    learner = _Learner(tuple(kernels), tuple(independent_features(points)), total)
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(repr(sorted(point.place.fixed.items())), []).append(point)
    return [leaf for group in groups.values() for leaf in learner.leaves(Leaf(None, tuple(group)))]


@dataclass(frozen=True, slots=True)
class _Learner:
    """`total`: the sum of all weights, of which gains are shares."""

    kernels: tuple[int, ...]
    features: tuple[str, ...]
    total: float

    def leaves(self, whole: Leaf) -> list[Leaf]:
        """The leaves of the best tree for the points of `whole`."""
        grid = self._grid(whole.points)
        leaves = list(_bounded(grid.best_tree(), whole, self.kernels, whole.above, whole.upto))
        if not grid.is_coarse:
            return leaves
        if len(leaves) > 1:
            return [finer for leaf in leaves for finer in self.leaves(leaf)]
        if leaves[0].kernel is not None or not self._may_gain(whole.points):
            return leaves
        # The grid is too coarse for a kernel. The grids of two halves are finer.
        halves = _bounded(grid.halved(), whole, self.kernels, whole.above, whole.upto)
        finer = [leaf for half in halves for leaf in self.leaves(half)]
        return finer if any(leaf.kernel is not None for leaf in finer) else leaves

    def _grid(self, points: Sequence[Point]) -> Grid:
        gains = [[self._gain(point, kernel) for point in points] for kernel in self.kernels]
        lost = [[_is_lost(point, kernel) for point in points] for kernel in self.kernels]
        table = len(self.kernels), len(points)
        return Grid(
            {name: np.array([p.features[name] for p in points]) for name in self.features},
            np.array(gains, dtype=np.int64).reshape(table),
            np.array(lost, dtype=np.int64).reshape(table),
            _LEAF,
        )

    def _may_gain(self, points: Sequence[Point]) -> bool:
        """Whether some tree could be worth its price."""
        best = [max(self._gain(point, kernel) for kernel in self.kernels) for point in points]
        return sum(best) > _LEAF

    def _gain(self, point: Point, kernel: int) -> int:
        return round(point.weight / self.total * point.gain(kernel) / _UNIT)


def _bounded(
    tree: Tree,
    whole: Leaf,
    kernels: tuple[int, ...],
    above: Mapping[str, int],
    upto: Mapping[str, int],
) -> Iterator[Leaf]:
    """The leaves of a tree for the points of `whole`."""
    if tree.split is None:
        kernel = None if tree.kernel is None else kernels[tree.kernel]
        yield Leaf(kernel, tuple(whole.points[number] for number in tree.points), above, upto)
        return
    name, low, high = tree.split
    least = max(whole.points[number].features[name] for number in low.points)
    most = min(whole.points[number].features[name] for number in high.points)
    border = min(max(math.isqrt(least * most), least), most - 1)
    yield from _bounded(low, whole, kernels, above, {**upto, name: border})
    yield from _bounded(high, whole, kernels, {**above, name: border}, upto)


def _is_lost(point: Point, kernel: int) -> bool:
    score = point.scores[kernel]
    return score is not None and not score.won
