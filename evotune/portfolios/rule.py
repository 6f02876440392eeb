"""The rule as an ordered list of regions: which kernel serves a case. The first region decides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from evotune.portfolios._rule_tree import Leaf
from evotune.portfolios.matrix_store import BATCH_HEADS, Point
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
    """Cases for one kernel of the portfolio.

    - `fixed`: values that each of them has. `ranges`: the least and the greatest value of
      quantities.
    - `shown`: the quantities that tell the regions of this rule apart; the others are the kernel's
      domain.
    - `speedup_low`: the least lower end of the intervals of `cases`, which were measured.
    """

    kernel: int
    fixed: Mapping[str, Value]
    ranges: Mapping[str, Ends]
    shown: tuple[str, ...]
    speedup_low: float
    cases: tuple[str, ...]
    exact: bool = False
    """Whether it is a single measured case."""

    def holds(self, point: Point) -> bool:
        place = point.place
        return all(place.fixed.get(name) == value for name, value in self.fixed.items()) and all(
            low <= _value(point, name) <= high for name, (low, high) in self.ranges.items()
        )

    @property
    def words(self) -> str:
        """`head_dim 64, causal, batch*heads 8 to 64, seq_len_q 128 to 724`."""
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
            # A package goes on where the kernel cannot run the case.
            if region.holds(point) and point.scores[region.kernel] is not None
        ),
        None,
    )


def regions_of(
    leaves: Sequence[Leaf], domains: Mapping[int, Sequence[Region]], *, exact: bool = False
) -> list[RuleRegion]:
    """The regions of the leaves that have a kernel, inside the domain of that kernel. Those of
    the most cases come first; no two of them hold the same case. With `exact`, a region for
    each measured case."""
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
    """For each feature the first one that equals it in every case of the rule; most often that is
    the feature itself."""
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
    """The region of one measured case, whose interval of the speedup begins at `low`."""
    is_attention = BATCH_HEADS in point.features
    free = _ANY if is_attention else ()
    sizes = {name: (v, v) for name, v in point.place.ranged.items() if name not in free}
    shown = [name for name in point.features if name in sizes]
    if is_attention:  # all that tells it from others of as many heads in all
        shown = ["batch", "heads", *(["group"] if sizes["group"] != (1, 1) else []), *shown]
        shown += [name for name in _WINDOWS if name in sizes]
    if _have_equal_lengths([point]):
        shown.remove(_KEYS)
    ranges = {**domain.ranges, **sizes}
    return RuleRegion(kernel, domain.fixed, ranges, tuple(shown), low, (point.label,), exact=True)


def _around(
    leaf: Leaf, kernel: int, domain: Region, twins: Mapping[str, str]
) -> Iterator[RuleRegion]:
    """The cases between the won ones, up to the borders of the leaf, or a tenth beyond the won
    cases where there is no border. Ratios of sizes are as they were measured. A feature that has a
    twin gets the ends of that one."""
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
    """The region without the `lost` case: it ends before that, in the feature where it keeps most
    of its measured cases. None where it keeps none."""
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
