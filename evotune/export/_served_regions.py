"""Which cases a package serves with which kernel: the regions around measured cases that won.

A case that was timed, or held out and timed, is won where the whole interval of its speedup lies
above 1, and the kernel gains more time than a call of the package costs. Between won cases, and
within a tenth of one, the kernel is expected to win too. A case that was measured and not won is
never inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evotune.export._case_shapes import CaseShapes, to_json
from evotune.problems.executed_sizes import NEAR, executed_within, near_ends
from evotune.problems.problem import Place
from evotune.space.language.expression import parse_expression
from evotune.space.reading.yaml_source import Position
from evotune.trial import Json, Region, Value

WON = 1.0
ELEMENTS = "elements"

Ranges = Mapping[str, tuple[int | float, int | float]]


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A case with a champion's speedup there.

    - sizes: the names of its quantities that are sizes, and not a ratio of sizes or a constant.
    - gain_us: the time that a call gains at least, the package's own cost taken off.
    """

    label: str
    place: Place
    sizes: frozenset[str]
    speedup_low: float
    held_out: bool = False
    gain_us: float = 0.0

    @property
    def won(self) -> bool:
        return self.speedup_low >= WON and self.gain_us >= 0.0


@dataclass(frozen=True, slots=True)
class ServedRegion:
    """A region of cases for one kernel. `near` regions were measured at some of their cases
    only."""

    kernel: int
    fixed: Mapping[str, Value]
    ranges: Ranges
    speedup_low: float
    near: bool

    def to_json(self, layout: str) -> dict[str, Json]:
        return {
            "kernel": self.kernel,
            "fixed": dict(self.fixed),
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            "speedup_low": self.speedup_low,
            "near": self.near,
            "layout": layout,
        }


def exact_regions(kernel: int, measured: Iterable[MeasuredCase]) -> Iterator[ServedRegion]:
    """A region of one case for each won timed case."""
    for case in measured:
        if case.won and not case.held_out:
            point = {name: (value, value) for name, value in case.place.ranged.items()}
            yield ServedRegion(kernel, case.place.fixed, point, case.speedup_low, near=False)


def near_regions(
    kernel: int, measured: Sequence[MeasuredCase], domain: Sequence[Region]
) -> Iterator[ServedRegion]:
    """The regions around the won cases, inside the domain. Won cases are taken together, nearest
    first, as long as the region holds no case that was measured and not won."""
    for region in domain:
        inside = [case for case in measured if case.place.is_in(region.fixed, region.ranges)]
        lost = [case.place for case in inside if not case.won]
        for group in _alike([case for case in inside if case.won]):
            for members in _grouped(group, lost, region):
                ranges = _around(members, region)
                if ranges is not None and not _any_inside(region.fixed, ranges, lost):
                    low = min(case.speedup_low for case in members)
                    yield ServedRegion(kernel, region.fixed, ranges, low, near=True)


def in_order(regions: Iterable[ServedRegion]) -> list[ServedRegion]:
    """The order in which a package looks: exact regions first, and the greatest speedup first."""
    return sorted(
        regions,
        key=lambda region: (
            region.near,
            -region.speedup_low,
            region.kernel,
            repr((sorted(region.fixed.items()), sorted(region.ranges.items()))),
        ),
    )


def _alike(cases: Sequence[MeasuredCase]) -> Iterator[list[MeasuredCase]]:
    """The cases in groups with the same ratios of sizes."""
    groups: dict[tuple[tuple[str, int | float], ...], list[MeasuredCase]] = {}
    for case in cases:
        ratios = tuple(
            (name, value)
            for name, value in sorted(case.place.ranged.items())
            if isinstance(value, int) and name not in case.sizes and name != ELEMENTS
        )
        groups.setdefault(ratios, []).append(case)
    yield from groups.values()


def _grouped(
    cases: Sequence[MeasuredCase], lost: Sequence[Place], region: Region
) -> list[list[MeasuredCase]]:
    """The cases joined into groups, the nearest two groups first, while a joined region holds no
    lost case."""
    groups = [[case] for case in sorted(cases, key=lambda case: case.label)]
    while True:
        joined = [
            (_distance(a, b), i, j)
            for i, a in enumerate(groups)
            for j, b in enumerate(groups[:i])
            if _may_join([*a, *b], lost, region)
        ]
        if not joined:
            return groups
        _, i, j = min(joined)
        groups[j] += groups.pop(i)


def _may_join(cases: Sequence[MeasuredCase], lost: Sequence[Place], region: Region) -> bool:
    ranges = _around(cases, region)
    return ranges is not None and not _any_inside(region.fixed, ranges, lost)


def _distance(some: Sequence[MeasuredCase], others: Sequence[MeasuredCase]) -> float:
    """The sum over sizes of the ratio, in ln, between the nearest cases. A window may be 0."""

    def size(case: MeasuredCase, name: str) -> float:
        return max(case.place.ranged[name], 1)

    return min(
        sum(abs(math.log(size(a, name) / size(b, name))) for name in a.sizes)
        for a in some
        for b in others
    )


def _around(cases: Sequence[MeasuredCase], region: Region) -> Ranges | None:
    """The sizes between the cases' and a tenth around them, clipped to the region; ratios as in the
    cases, and all constants of the region. A quantity that the region lacks is a ratio of sizes
    that may change by a tenth as well. None when nothing is left, or when sizes between the cases
    were not executed."""
    sizes = cases[0].sizes
    found: dict[str, tuple[int | float, int | float]] = {}
    for name, (low, high) in region.ranges.items():
        values = [case.place.ranged[name] for case in cases]
        if name in sizes:
            least, most = near_ends(values)
            found[name] = (max(low, least), min(high, most))
        elif isinstance(values[0], int) and name != ELEMENTS:
            found[name] = (values[0], values[0])
        else:
            found[name] = (low, high)
    for name in cases[0].place.ranged.keys() - region.ranges.keys():
        ratios = [case.place.ranged[name] for case in cases]
        found[name] = (min(ratios) * (1 - NEAR), max(ratios) * (1 + NEAR))
    if any(low > high for low, high in found.values()):
        return None
    return executed_within(found, [case.place for case in cases], sizes, region)


def _any_inside(fixed: Mapping[str, Value], ranges: Ranges, places: Iterable[Place]) -> bool:
    return any(place.is_in(fixed, ranges) for place in places)


# Completes the regions of attention: in a package a region also fixes the features not in use.
#
# The domain of a run names only the features that its cases use. A package may hold kernels of
# several runs, and a kernel serves only calls with exactly the features that it was checked for. So
# a package's region gives each unused feature the value that means none.
NONE: Mapping[str, Value] = {
    "given": "",
    "bottom_right": False,
    "alibi": False,
    "score_mod": "",
    "sinks": False,
    "lse": False,
}
"""The features that a region fixes, with the values that mean none. `given` names the features that
are numbers: a window's ends and the soft cap, of which regions have ranges."""

Fixed = Mapping[str, Value]


def completing(shapes: CaseShapes) -> Callable[[Fixed], dict[str, Value]]:
    """A function that completes the fixed values of a region: each feature that its cases do not
    use gets its value in `NONE`, and `value_dim` is `head_dim` unless it is fixed.

    The function adds nothing if no case of the package has features, and for other problems.
    """
    if not shapes.has_features:
        return dict
    return lambda fixed: {**NONE, "value_dim": fixed["head_dim"], **fixed}


def score_mods(fixed: Iterable[Fixed]) -> dict[str, Json]:
    """The score modifications that regions name, each with its tree."""
    texts = dict.fromkeys(str(each["score_mod"]) for each in fixed if each.get("score_mod"))
    return {text: to_json(parse_expression(text, Position()).node) for text in texts}
