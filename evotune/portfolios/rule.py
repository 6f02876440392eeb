"""The rule, which says which kernel serves a case: an ordered list of regions, of which the first
that contains the case decides.

A rule is learnt from measured cases: small decision trees, whose leaves name a kernel or PyTorch.
Cases with other fixed values (a head size, a mask) have a separate tree, because no binary serves
both. A leaf names a kernel only if the kernel won every case of the leaf that it can run. Each such
leaf costs a fixed share of the mean speedup, so a split must gain more than that, and the trees
stay small. A greedy tree misses two splits of which neither gains anything alone: together they may
cut out a lost case. So each tree is the best one of all trees over a grid of borders (`_Split`).
Where sizes have more values than the grid, leaves are then divided again on a finer grid.

A rule is judged by cases from which it was not made, and the cases that lose are cut out. The
judging cases are the held-out cases of the list, and cases drawn between the measured ones. A drawn
case that was not tried is cut out where a model of the kernel's speed expects a loss.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from evotune.portfolios.matrix_store import BATCH_HEADS, Point, independent_features
from evotune.problems.executed_sizes import NEAR, near_ends
from evotune.trial import Region, Value

_MEASURED = ("group",)
"""Ratios that stay between the measured ones."""
_LENGTH_RATIO = "length_ratio"
_WINDOWS = ("window_left", "window_right")
"""Sizes that no tree divides."""
_ANY = ("elements", "softmax_scale", _LENGTH_RATIO)
"""A single case of attention may have any value of these that the kernel was checked for: no time
depends on them, or they follow from the sizes."""
_QUERIES, _KEYS = "seq_len_q", "seq_len_k"
_NAMES = {"batch_heads": "batch*heads"}

Ends = tuple[int | float, int | float]


class RuleRegion(msgspec.Struct, frozen=True):
    """A region of cases that one kernel of the portfolio serves.

    - `fixed`: values that each of the cases has.
    - `ranges`: the least and the greatest value of quantities.
    - `shown`: the quantities that distinguish the regions of this rule; the others only state the
      kernel's domain.
    - `speedup_low`: the least lower end of the intervals of `cases`, which were measured.
    """

    kernel: int
    fixed: Mapping[str, Value]
    ranges: Mapping[str, Ends]
    shown: tuple[str, ...]
    speedup_low: float
    cases: tuple[str, ...]
    exact: bool = False
    """Whether the region is a single measured case."""

    def holds(self, point: Point) -> bool:
        place = point.place
        return all(place.fixed.get(name) == value for name, value in self.fixed.items()) and all(
            low <= _value(point, name) <= high for name, (low, high) in self.ranges.items()
        )

    @property
    def words(self) -> str:
        """The region in words: `head_dim 64, causal, batch*heads 8 to 64, seq_len_q 128 to 724`."""
        parts = [_fixed_words(n, value) for n, value in self.fixed.items() if n != "dtype"]
        for name in self.shown:
            low, high = self.ranges[name]
            span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            parts.append(f"{_NAMES.get(name, name)} {span}")
        return ", ".join(parts)


def _fixed_words(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {value}"


def _value(point: Point, name: str) -> int | float:
    return point.place.ranged[name] if name in point.place.ranged else point.features[name]


def kernel_at(regions: Sequence[RuleRegion], point: Point) -> int | None:
    """The kernel that the rule names for a case; None for PyTorch."""
    return next(
        (
            region.kernel
            for region in regions
            # If the kernel cannot run the case, a package tries the next region.
            if region.holds(point) and point.scores[region.kernel] is not None
        ),
        None,
    )


def regions_of(
    leaves: Sequence[Leaf], domains: Mapping[int, Sequence[Region]], *, exact: bool = False
) -> list[RuleRegion]:
    """The regions of the leaves that have a kernel, inside the domain of that kernel. Regions with
    the most cases come first; no two regions contain the same case. With `exact` there is a region
    for each measured case."""
    twins = _twins([point for leaf in leaves for point in leaf.points])
    found = [
        region
        for leaf in leaves
        if leaf.kernel is not None
        for domain in domains[leaf.kernel]
        for region in (
            _points(leaf, leaf.kernel, domain)
            if exact
            else _around(leaf, leaf.kernel, domain, twins)
        )
    ]
    return sorted(found, key=lambda region: (-len(region.cases), region.words))


def _twins(points: Sequence[Point]) -> dict[str, str]:
    """For each feature the first feature that equals it in every case of the rule, usually the
    feature itself."""
    features = tuple(points[0].features) if points else ()
    return {
        name: next(
            twin for twin in features if all(p.features[twin] == p.features[name] for p in points)
        )
        for name in features
    }


def _won(leaf: Leaf, kernel: int, domain: Region) -> list[tuple[Point, float]]:
    """The won cases of the leaf inside the domain, with their lower ends. Cases of weight 0 only
    bound the leaf."""
    return [
        (point, score.low)
        for point in leaf.points
        if point.weight > 0.0
        and (score := point.scores[kernel]) is not None
        and score.won
        and point.place.is_in(domain.fixed, domain.ranges)
    ]


def _points(leaf: Leaf, kernel: int, domain: Region) -> Iterator[RuleRegion]:
    for point, low in _won(leaf, kernel, domain):
        ranges = {name: (value, value) for name, value in point.place.ranged.items()}
        shown = tuple(name for name in point.features if name in ranges)
        yield RuleRegion(kernel, domain.fixed, ranges, shown, low, (point.label,), exact=True)


def single_case(point: Point, kernel: int, domain: Region, low: float) -> RuleRegion:
    """The region of one measured case whose speedup has the lower bound `low`."""
    is_attention = BATCH_HEADS in point.features
    free = _ANY if is_attention else ()
    sizes = {name: (v, v) for name, v in point.place.ranged.items() if name not in free}
    shown = [name for name in point.features if name in sizes]
    if is_attention:  # all that distinguishes it from others with the same total number of heads
        shown = ["batch", "heads", *(["group"] if sizes["group"] != (1, 1) else []), *shown]
        shown += [name for name in _WINDOWS if name in sizes]
    if _have_equal_lengths([point]):
        shown.remove(_KEYS)
    ranges = {**domain.ranges, **sizes}
    return RuleRegion(kernel, domain.fixed, ranges, tuple(shown), low, (point.label,), exact=True)


def _around(
    leaf: Leaf, kernel: int, domain: Region, twins: Mapping[str, str]
) -> Iterator[RuleRegion]:
    """The cases between the won ones, up to the borders of the leaf, or to a tenth beyond the won
    cases if there is no border. Ratios of sizes are those that were measured. A feature with a twin
    gets the twin's ends."""
    won = _won(leaf, kernel, domain)
    if not won:
        return
    points = [point for point, _ in won]
    ranges: dict[str, Ends] = dict(domain.ranges)
    shown = []
    for name, twin in twins.items():
        has_border = name in leaf.above or name in leaf.upto
        if name == _KEYS and not has_border and _have_equal_lengths(points):
            continue  # they follow from the queries by the ratio of the lengths
        shown.append(name)
        low, high = near_ends([point.features[name] for point in points])
        low, high = leaf.above.get(twin, low - 1) + 1, leaf.upto.get(twin, high)
        least, most = domain.ranges.get(name, (low, high))
        ranges[name] = (max(low, least), min(high, most))
    for name in _WINDOWS:
        if name in domain.ranges:
            shown.append(name)
            low, high = near_ends([int(point.place.ranged[name]) for point in points])
            least, most = domain.ranges[name]
            ranges[name] = (max(low, least), min(high, most))
    for name in (_LENGTH_RATIO, *_MEASURED):
        if name in points[0].place.ranged:
            ratios = [point.place.ranged[name] for point in points]
            ranges[name] = (min(ratios), max(ratios))
            if name == _LENGTH_RATIO:
                ranges[name] = (min(ratios) * (1 - NEAR), max(ratios) * (1 + NEAR))
    low_speedup = min(low for _, low in won)
    labels = tuple(point.label for point in points)
    yield RuleRegion(kernel, domain.fixed, ranges, tuple(shown), low_speedup, labels)


def _have_equal_lengths(points: Sequence[Point]) -> bool:
    """Whether each case is self-attention: as many queries as keys."""
    return all(
        _LENGTH_RATIO in p.place.ranged and p.features[_QUERIES] == p.features[_KEYS]
        for p in points
    )


def cut(region: RuleRegion, lost: Point, measured: Sequence[Point]) -> RuleRegion | None:
    """The region cut so that it ends before the `lost` case, in the feature in which it keeps most
    of its measured cases. None if it keeps none."""
    own = [point for point in measured if point.label in region.cases]
    best: tuple[float, RuleRegion] | None = None
    for name in region.shown:
        low, high = region.ranges[name]
        border = _value(lost, name)
        for below in (True, False):
            kept = [p for p in own if (_value(p, name) < border) == below]
            kept = [p for p in kept if _value(p, name) != border]
            if not kept:
                continue
            values = [_value(point, name) for point in kept]
            if below:
                nearest = max(values)
                ends = (low, min(max(nearest, _between(nearest, border)), border - 1))
            else:
                nearest = min(values)
                ends = (max(min(nearest, _between(border, nearest) + 1), border + 1), high)
            labels = tuple(point.label for point in kept)
            made = msgspec.structs.replace(
                region, ranges={**region.ranges, name: ends}, cases=labels
            )
            weight = sum(point.weight for point in kept)
            if best is None or weight > best[0]:
                best = weight, made
    return None if best is None else best[1]


def _between(low: int | float, high: int | float) -> int:
    """The geometric mean, as an integer."""
    return math.isqrt(int(low) * int(high))


_UNIT = 1e-9
"""The unit of gains, in ln of the mean speedup."""
_LEAF = round(0.0015 / _UNIT)
"""The price of a leaf with a kernel."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The cases of a leaf of a tree, and the best kernel for all of them, or None if PyTorch serves
    them.

    `above`, `upto`: the bounds of features on the way to the leaf: above < feature <= upto.
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
    """`total`: the sum of all weights; gains are shares of it."""

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
        """Whether some tree could be worth its penalty."""
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
"""The approximate maximum number of boxes of a grid."""
_NEVER = -(1 << 40)
"""The gain of a leaf that may not be."""

Integers: TypeAlias = NDArray[np.int64]
_Numbers: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree over the points with these numbers.

    - `kernel`: for a leaf, the row of its kernel; None for PyTorch.
    - `split`: a feature, the tree below the border and the tree above it; None for a leaf.
    """

    points: Integers
    kernel: int | None = None
    split: tuple[str, Tree, Tree] | None = None


class _Split(NamedTuple):
    """A split of a box along `axis`: the first `below` cells, and the rest."""

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

    - `sizes`: the sizes of the points, by feature.
    - `gains`, `lost`: a row for each kernel, a column for each point. A leaf names no kernel that
      lost one of its points.
    - `price`: the cost of a leaf with a kernel.
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
        """The best tree on the grid. In a tie it is the smallest tree, then the one that begins
        with the most even split.
        """
        # The parts of a box come before it in this order.
        for extent in itertools.product(*(range(1, cells + 1) for cells in self._whole[1])):
            self._best[extent] = self._of(extent)
        return self._tree(self._whole)

    def halved(self) -> Tree:
        """A tree with the most even split, whose two leaves are PyTorch's. Raises ValueError if
        there is no border."""
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
    """How many borders each feature may have so that the grid does not exceed its number of
    boxes."""
    borders = 1
    while features and ((borders + 2) * (borders + 3) / 2) ** features <= _MOST_BOXES:
        borders += 1
    return borders


def _spread(values: Integers, count: int) -> Integers:
    """At most `count` of the values, spread evenly over them: each in the middle of its share."""
    count = min(count, len(values))
    return values[(2 * np.arange(count) + 1) * len(values) // (2 * count)]


Doubted = Callable[[RuleRegion], tuple[Point, float] | None]
"""Returns a case of a region for which a loss is expected, and the expected speedup; None if there
is none."""


class Cut(msgspec.Struct, frozen=True):
    """A cut of a region of the rule, because its kernel lost `case`.

    `before`, `after`: the region in words, before and after the cut; "" if nothing is left.
    `drawn`: whether the case was drawn between the measured ones; else it is a held-out case.
    `predicted`: whether the case was not tried, so that `speedup` is the model's.
    """

    case: str
    speedup: float
    before: str
    after: str
    drawn: bool = False
    predicted: bool = False

    @property
    def words(self) -> str:
        kind = "drawn" if self.drawn else "held out"
        has = "was not tried and may have" if self.predicted else "has"
        left = f"left: {self.after}" if self.after else "nothing of it is left"
        return f"{self.case}, {kind}, {has} {self.speedup:.3f}x in [{self.before}]; {left}"


class Figures(msgspec.Struct, frozen=True):
    """How a rule serves cases. Speedups are over PyTorch; a case that PyTorch serves counts as 1.

    - `mean`: the weighted geometric mean of speedups.
    - `of_best`: the weighted geometric mean of speedup / the speedup of the best champion measured
      on the case.
    - `worst`: the least speedup, which is that of the case `worst_case`.
    - `served`: the number of cases that a kernel serves.
    """

    cases: int
    served: int
    mean: float
    of_best: float
    worst: float
    worst_case: str


def held_out_labels(points: Sequence[Point], share: float, seed: int) -> set[str]:
    """The labels of the cases that are held out to judge the rule. A case that is the only one with
    its fixed values is not held out. Groups that are too small to hold out one case each are
    pooled."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(repr(sorted(point.place.fixed.items())), []).append(point)
    # Small groups have their own generator: the cases of large ones do not depend on them.
    rng, small = (random.Random(f"{words} {seed}") for words in ("held out", "small groups"))
    found: list[str] = []
    carried = 0.0
    for key in sorted(groups):
        labels = sorted(point.label for point in groups[key])
        if len(labels) == 1:
            continue
        if round(share * len(labels)):
            found += rng.sample(labels, min(round(share * len(labels)), len(labels) - 1))
            continue
        carried += share * len(labels)
        if round(carried) >= 1:
            found.append(small.choice(labels))
            carried -= 1
    return set(found)


def judged(points: Sequence[Point], regions: Sequence[RuleRegion]) -> Figures:
    """The figures of a rule on cases whose kernels were measured."""
    speedups = [_speedup(point, kernel_at(regions, point)) for point in points]
    best = [max([1.0, *(s.speedup for s in p.scores if s is not None and s.won)]) for p in points]
    total = sum(point.weight for point in points)

    def mean(values: Sequence[float]) -> float:
        logs = (p.weight * math.log(max(v, 1e-9)) for p, v in zip(points, values, strict=True))
        return math.exp(sum(logs) / total) if total else 1.0

    worst = min(range(len(points)), key=lambda n: speedups[n], default=None)
    return Figures(
        cases=len(points),
        served=sum(kernel_at(regions, point) is not None for point in points),
        mean=mean(speedups),
        of_best=mean([s / b for s, b in zip(speedups, best, strict=True)]),
        worst=1.0 if worst is None else speedups[worst],
        worst_case="" if worst is None else points[worst].label,
    )


def without_losses(
    regions: Sequence[RuleRegion],
    judges: Sequence[Point],
    measured: Sequence[Point],
    *,
    drawn: bool = False,
) -> tuple[list[RuleRegion], list[Cut]]:
    """The rule without the parts in which a judging case was not won, and the cuts."""
    left, cuts = list(regions), []
    for point in judges:
        for number in reversed(range(len(left))):
            region = left[number]
            score = point.scores[region.kernel]
            if score is None or score.won or not region.holds(point):
                continue
            rest = cut(region, point, measured)
            words = "" if rest is None else rest.words
            cuts.append(Cut(point.label, score.speedup, region.words, words, drawn))
            left[number : number + 1] = [] if rest is None else [rest]
    return left, cuts


def without_doubts(
    regions: Sequence[RuleRegion], doubted: Doubted, measured: Sequence[Point]
) -> tuple[list[RuleRegion], list[Cut]]:
    """The rule without the parts in which a loss is expected, and the cuts: one for a region, at
    its worst case."""
    left, cuts = [], []
    for region in regions:
        rest: RuleRegion | None = region
        first = found = doubted(region)
        while rest is not None and found is not None:
            rest = cut(rest, found[0], measured)
            found = None if rest is None else doubted(rest)
        if first is not None:
            point, speedup = first
            words = "" if rest is None else rest.words
            cuts.append(Cut(point.label, speedup, region.words, words, drawn=True, predicted=True))
        if rest is not None:
            left.append(rest)
    return left, cuts


def _speedup(point: Point, kernel: int | None) -> float:
    score = None if kernel is None else point.scores[kernel]
    return 1.0 if score is None else score.speedup
