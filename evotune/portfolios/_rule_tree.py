"""Learns a rule from measured cases: small decision trees, whose leaves name a kernel or PyTorch.

Cases with other fixed values (a head size, a mask) have a tree of their own, since no binary serves
both. A leaf names a kernel only if the kernel won every case of the leaf that it can run. Each such
leaf costs a fixed share of the mean speedup, so a split must gain more than that, and the trees
stay small.

A greedy tree misses two splits of which neither gains anything alone: together they may cut out a
lost case. So each tree is the best one of all trees over a grid of borders (`_Split`). Where sizes
have more values than the grid, leaves are then divided again on a finer grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evotune.portfolios.matrix_store import Point, independent_features

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


# The best decision tree over a grid of borders, found by dynamic programming.
#
# Borders divide the values of each feature into cells, and a box is a block of cells. The best tree
# of a box is a leaf, or a split with the best trees of the two smaller boxes. All boxes of the same
# extent are computed at once. All numbers are integers, so that sums are exact.
_MOST_BOXES = 20_000
"""A grid has at most about so many boxes."""
_NEVER = -(1 << 40)
"""The gain of a leaf that may not be."""

Integers: TypeAlias = NDArray[np.int64]
_Numbers: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree for the points of these numbers.

    - `kernel`: of a leaf, the row of its kernel; None for PyTorch.
    - `split`: a feature, the tree below the border and the tree above it; None for a leaf.
    """

    points: Integers
    kernel: int | None = None
    split: tuple[str, Tree, Tree] | None = None


class _Split(NamedTuple):
    """The first `below` cells along an axis, and the others."""

    axis: int
    below: int

    def halves(self, start: _Numbers, extent: _Numbers) -> tuple[_Box, _Box]:
        def changed(numbers: _Numbers, value: int) -> _Numbers:
            return (*numbers[: self.axis], value, *numbers[self.axis + 1 :])

        high = changed(start, start[self.axis] + self.below)
        rest = changed(extent, extent[self.axis] - self.below)
        return (start, changed(extent, self.below)), (high, rest)


_Box: TypeAlias = "tuple[_Numbers, _Numbers]"
"""The first cell along each axis, and the numbers of cells."""


class _Best(NamedTuple):
    """The best trees of all boxes of one extent, by the cell where a box begins.

    - `rank`: the value of a tree: first its gain less the price of its leaves, then the number of
      its leaves, the fewer the better. The rank of a tree is the sum of those of its leaves.
    - `points`: the number of points in the box.
    - `choice`: the row of a leaf's kernel, from 1 on; 0 for PyTorch. Else the number of the split,
      after the rows.
    """

    rank: Integers
    points: Integers
    choice: Integers


class Grid:
    """The points in the cells of a grid.

    - `sizes`: of the points, by feature.
    - `gains`, `lost`: a row for each kernel, a column for each point. A leaf names no kernel that
      lost one of its points.
    - `price`: of a leaf with a kernel.
    """

    def __init__(
        self, sizes: Mapping[str, Integers], gains: Integers, lost: Integers, price: int
    ) -> None:
        self._count = gains.shape[1]
        values = {name: np.unique(column) for name, column in sizes.items()}
        self._names = [name for name, found in values.items() if len(found) > 1]
        most = _borders_each(len(self._names))
        borders = [_spread(values[name][:-1], most) for name in self._names]
        self.is_coarse = any(len(values[name]) - 1 > most for name in self._names)
        # A grid without a feature has one cell.
        self._cells = np.zeros((max(1, len(borders)), self._count), dtype=np.int64)
        for axis, (name, border) in enumerate(zip(self._names, borders, strict=True)):
            self._cells[axis] = np.searchsorted(border, sizes[name])
        extent = tuple(len(border) + 1 for border in borders) or (1,)
        self._whole: _Box = (0,) * len(extent), extent
        # The first row is PyTorch, which gains nothing, costs nothing and loses nowhere.
        none = np.zeros((1, self._count), dtype=np.int64)
        self._gains = self._summed(np.concatenate([none, gains]))
        self._lost = self._summed(np.concatenate([none, lost]))
        self._points = self._summed(none + 1)
        prices = np.array([0, *(price for _ in gains)])
        self._prices = prices.reshape(-1, *(1 for _ in extent))
        self._best: dict[_Numbers, _Best] = {}

    def best_tree(self) -> Tree:
        """Of equal trees the smallest one, then one that begins with the most even split."""
        # The parts of a box come before it in this order.
        for extent in itertools.product(*(range(1, cells + 1) for cells in self._whole[1])):
            self._best[extent] = self._of(extent)
        return self._tree(self._whole)

    def halved(self) -> Tree:
        """The most even split, into leaves of PyTorch. ValueError where there is no border."""
        halves = [
            (split, [self._inside(half) for half in split.halves(*self._whole)])
            for split in _splits(self._whole[1])
        ]
        split, (low, high) = max(halves, key=lambda each: min(map(len, each[1])))
        return Tree(
            self._inside(self._whole), None, (self._names[split.axis], Tree(low), Tree(high))
        )

    def _tree(self, box: _Box) -> Tree:
        start, extent = box
        choice = int(self._best[extent].choice[start])
        rows = len(self._prices)
        if choice < rows:
            return Tree(self._inside(box), choice - 1 if choice else None)
        split = _splits(extent)[choice - rows]
        low, high = (self._tree(half) for half in split.halves(start, extent))
        return Tree(self._inside(box), None, (self._names[split.axis], low, high))

    def _inside(self, box: _Box) -> Integers:
        start, extent = (np.array(numbers)[:, None] for numbers in box)
        inside = (self._cells >= start) & (self._cells < start + extent)
        return np.flatnonzero(inside.all(axis=0))

    def _of(self, extent: _Numbers) -> _Best:
        values = _sums(self._gains, extent) - self._prices
        values[_sums(self._lost, extent) > 0] = _NEVER
        points = _sums(self._points, extent)[0]
        more = self._count + 1  # than a tree has leaves, or points
        ranks = [values * more - 1]
        evenness = [np.zeros_like(values)]
        origin = (0,) * len(extent)
        for split in _splits(extent):
            low, high = (
                [part[_block(start, points.shape)] for part in self._best[half][:2]]
                for start, half in split.halves(origin, extent)
            )
            even = np.minimum(low[1], high[1])
            rank = low[0] + high[0]
            rank[even == 0] = _NEVER * more
            ranks.append(rank[None])
            evenness.append(even[None])
        rank = np.concatenate(ranks)
        choice = (rank * more + np.concatenate(evenness)).argmax(axis=0)[None]
        return _Best(np.take_along_axis(rank, choice, axis=0)[0], points, choice[0])

    def _summed(self, rows: Integers) -> Integers:
        """For each row the sums over all cells before a corner, from which `_sums` has a box."""
        extent = self._whole[1]
        tables = np.zeros((len(rows), *(cells + 1 for cells in extent)), dtype=np.int64)
        for table, row in zip(tables, rows, strict=True):
            np.add.at(table, tuple(self._cells + 1), row)
        for axis in range(1, tables.ndim):
            tables = tables.cumsum(axis=axis)
        return tables


def _sums(tables: Integers, extent: _Numbers) -> Integers:
    """The sums over all boxes of an extent."""
    for axis, cells in enumerate(extent, 1):
        ends = np.moveaxis(tables, axis, 0)
        tables = np.moveaxis(ends[cells:] - ends[:-cells], 0, axis)
    return tables


def _splits(extent: _Numbers) -> list[_Split]:
    """All splits of a box."""
    return [_Split(axis, n) for axis, cells in enumerate(extent) for n in range(1, cells)]


def _block(start: _Numbers, counts: _Numbers) -> tuple[slice, ...]:
    return tuple(slice(at, at + count) for at, count in zip(start, counts, strict=True))


def _borders_each(features: int) -> int:
    """How many borders each feature may have, so that the grid has no more than its boxes."""
    borders = 1
    while features and ((borders + 2) * (borders + 3) / 2) ** features <= _MOST_BOXES:
        borders += 1
    return borders


def _spread(values: Integers, count: int) -> Integers:
    """At most `count` of the values, spread evenly over them: each in the middle of its share."""
    count = min(count, len(values))
    return values[(2 * np.arange(count) + 1) * len(values) // (2 * count)]
