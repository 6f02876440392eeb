"""Cases between the measured ones, on which a rule is tried before it is written.

A region reaches from one measured case to the next. Between them a kernel may lose, most of all
where a size is one more than a multiple of its tiles, so that the last tile computes one row. So
cases are drawn all over a region, and those are tried on which a model of the kernel's speed
(`_speed_model.py`) cannot exclude a loss. A few are tried even where it is sure: it may know too
little.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from evotune.portfolios._speed_model import predicted_lows
from evotune.portfolios.points import Point, point_of
from evotune.portfolios.rule import RuleRegion
from evotune.problems.problem import Case, Problem
from evotune.space.specs import GivenCase

_SURE = 1.02
"""A case with a greater predicted speedup is not tried where others in the region were."""
_DOUBTED = 0.98
"""A region ends before a case that was not tried and has a smaller predicted speedup."""
_AT_ONCE = 3
"""So many cases of a region are tried at once. The model knows their times before it is asked for
the next ones."""
_APART = 0.2
"""Cases that are tried at once differ in a size by at least so many doublings."""
_CANDIDATES = 600
_TRIES = 3000
_AROUND = 16.0
"""A size is drawn between a sixteenth of the measured one and sixteen times it."""
_TILES = (192, 128, 1, 0)
"""Sizes are one more than a multiple of so many rows, which are multiples of the usual
tiles of 16, 32, 64, 96, 128 and 192; any size; 0: a multiple of the power of 2 that divides the
measured size, since kernels may take no other ones."""
_SMALLEST = 128
_ALIGNED = 64
_KEPT = frozenset({"heads", "kv_heads", "window_left", "window_right"})
"""Programs have few numbers of heads, and few windows."""
CanRun = Callable[[int, Case], bool]


class DrawnCases:
    """Draws cases in the regions of rules.

    - `given`: the shapes of the listed cases, by label. The drawn ones have no more operations than
      the largest of these. Numbers of heads and windows stay as they were measured.
    - `parallel`: the number of multiprocessors, or of a CPU's threads.
    """

    def __init__(
        self, problem: Problem, given: Mapping[str, GivenCase], seed: int, parallel: int
    ) -> None:
        self._problem = problem
        self._given = given
        self._seed = seed
        self._parallel = parallel
        cases = (problem.case(each.shape, each.variant) for each in given.values())
        self._most_operations = max(map(problem.flops, cases), default=0)
        self._candidates: dict[str, dict[str, tuple[Case, Point]]] = {}

    def drawn(
        self, regions: Sequence[RuleRegion], tried: Sequence[Point], can_run: CanRun
    ) -> list[tuple[int, Case]]:
        """Cases in the regions, each with the number of the region's kernel; none where others were
        tried and the model is sure.

        `tried`: the measured cases, those drawn before among them, with the scores of the kernels.
        `can_run`: whether a kernel can run a case.
        """
        found: dict[str, tuple[int, Case]] = {}
        for region in regions:
            known = [point for point in tried if _teaches(point, region)]
            if region.exact or not region.cases or not known:
                continue
            tried_labels = {point.label for point in known}
            left = {
                label: each
                for label, each in self._inside(region).items()
                if label not in tried_labels and label not in found
            }
            drawn_before = (point for point in known if point.label not in self._given)
            is_untried = not any(region.holds(point) for point in drawn_before)
            for case in self._doubtful(region, known, left, can_run, is_untried=is_untried):
                found[case.label] = region.kernel, case
        return list(found.values())

    def doubted(
        self, region: RuleRegion, tried: Sequence[Point], can_run: CanRun
    ) -> tuple[Point, float] | None:
        """The case of a region that its kernel loses worst, by the model, and the speedup there. It
        was not tried. None where the model knows of no such case."""
        known = [point for point in tried if _teaches(point, region)]
        if region.exact or not region.cases or not known:
            return None
        tried_labels = {point.label for point in known}
        left = [
            point
            for label, (case, point) in self._inside(region).items()
            if label not in tried_labels and can_run(region.kernel, case)
        ]
        if not left:
            return None
        lows = predicted_lows(known, region.kernel, left, self._parallel)
        worst = int(np.argmin(lows))
        speedup = math.exp(lows[worst])
        return (left[worst], speedup) if speedup < _DOUBTED else None

    def _doubtful(
        self,
        region: RuleRegion,
        known: Sequence[Point],
        left: Mapping[str, tuple[Case, Point]],
        can_run: CanRun,
        *,
        is_untried: bool,
    ) -> Iterator[Case]:
        """The candidates that the kernel may lose, the most doubtful first, and apart from each
        other."""
        if not left:
            return
        cases, points = zip(*left.values(), strict=True)
        lows = predicted_lows(known, region.kernel, points, self._parallel)
        sure = math.inf if is_untried else math.log(_SURE)
        chosen: list[Point] = []
        for number in np.argsort(lows, kind="stable"):
            if len(chosen) == _AT_ONCE or lows[number] >= sure:
                return
            point = points[number]
            is_apart = all(_doublings(point, other) >= _APART for other in chosen)
            if is_apart and can_run(region.kernel, cases[number]):
                chosen.append(point)
                yield cases[number]

    def _inside(self, region: RuleRegion) -> Mapping[str, tuple[Case, Point]]:
        """The candidates of a region, drawn around its measured cases in turn. They are the same
        for as long as a process works."""
        words = f"{region.kernel} {region.words}"
        if words not in self._candidates:
            rng = random.Random(f"drawn {self._seed} {region.words}")
            around = [_around(self._problem, self._given[label], rng) for label in region.cases]
            found: dict[str, tuple[Case, Point]] = {}
            for number in range(_TRIES):
                case = next(around[number % len(around)], None)
                if case is None or case.label in self._given or len(found) == _CANDIDATES:
                    continue
                point = point_of(self._problem, case)
                if region.holds(point) and self._problem.flops(case) <= self._most_operations:
                    found[case.label] = case, point
            self._candidates[words] = found
        return self._candidates[words]


def _teaches(point: Point, region: RuleRegion) -> bool:
    """Whether the model of the region's kernel learns from the case."""
    score = point.scores[region.kernel]
    return point.place.fixed == region.fixed and score is not None and score.low > 0.0


def _doublings(one: Point, other: Point) -> float:
    """The largest difference of two sizes, in doublings."""
    return max(abs(math.log2(value / other.features[name])) for name, value in one.features.items())


def _around(problem: Problem, like: GivenCase, rng: random.Random) -> Iterator[Case]:
    """Cases of other sizes. Some of the sizes stay as they were measured, since a region may be
    wide in one size alone."""
    features = point_of(problem, problem.case(like.shape, like.variant)).features
    varying = {"seq_len", "batch", *features} - _KEPT
    sizes = {name: int(value) for name, value in like.shape.items() if name in varying}
    leaders = [name for name in sizes if _leader(name, sizes) == name]
    for _ in range(_TRIES if leaders else 0):
        drawn = [name for name in leaders if rng.random() < 0.5] or [rng.choice(leaders)]
        tile = rng.choice(_TILES)
        power = rng.choice((1, 3))  # 3: most sizes are near, and meet a narrow region
        others = {
            name: _other_size(sizes[name], tile, _AROUND ** rng.uniform(-1, 1) ** power)
            for name in drawn
        }
        for name, value in sizes.items():
            leader = _leader(name, sizes)
            if leader != name and leader in others:
                # A rule keeps the ratio of the lengths.
                others[name] = max(1, round(value * others[leader] / sizes[leader]))
        with contextlib.suppress(ValueError):  # sizes that the problem does not have
            yield problem.case({**like.shape, **others}, like.variant)


def _leader(name: str, sizes: Mapping[str, int]) -> str:
    """The size that this one follows: of the queries' and the keys' that of the queries, unless
    they are few and fewer than the keys. Any other size follows itself."""
    queries, keys = f"{name[:-2]}_q", f"{name[:-2]}_k"
    if name not in (queries, keys) or queries not in sizes or keys not in sizes:
        return name
    return queries if sizes[queries] >= min(sizes[keys], _SMALLEST) else keys


def _other_size(size: int, tile: int, ratio: float) -> int:
    found = max(1, round(size * ratio))
    if tile == 0:
        step = math.gcd(size, _ALIGNED)
        return max(step, found // step * step)
    return found // tile * tile + 1 if tile > 1 and found >= _SMALLEST else found
