"""The best decision tree over a grid of borders, found by dynamic programming.

Borders divide the values of each feature into cells, and a box is a block of cells. The best tree
of a box is a leaf, or a split with the best trees of the two smaller boxes. All boxes of the same
extent are computed at once. All numbers are integers, so that sums are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
