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
_EACH = 3
"""So many cases of a region are tried at once. The model knows their times before it is asked for
the next ones."""
_APART = 0.2
"""Cases that are tried at once differ in a size by at least so many doublings."""
_CANDIDATES = 300
_TRIES = 3000
_AROUND = 16.0
"""A size is drawn between a sixteenth of the measured one and sixteen times it."""
_TILES = (192, 128, 1, 0)
"""Sizes are in turn one more than a multiple of so many rows, which are multiples of the usual
tiles of 16, 32, 64, 96, 128 and 192; any size; 0: a multiple of the power of 2 that divides the
measured size, since kernels may take no other ones."""
_SMALLEST = 128
_ALIGNED = 64
_KEPT = frozenset({"heads", "kv_heads", "window_left", "window_right"})
"""Programs have few numbers of heads, and few windows."""
CanRun = Callable[[int, Case], bool]


def drawn_cases(  # noqa: PLR0917
    problem: Problem,
    regions: Sequence[RuleRegion],
    tried: Sequence[Point],
    given: Mapping[str, GivenCase],
    can_run: CanRun,
    seed: int,
    parallel: int,
) -> list[tuple[int, Case]]:
    """Cases in the regions, each with the number of the region's kernel; none where others were
    tried and the model is sure.

    - `tried`: the measured cases, those drawn before among them, with the scores of the kernels.
    - `given`: the shapes of the listed cases, by label. The drawn ones have no more operations than
      the largest of these. Numbers of heads and windows stay as they were measured.
    - `can_run`: whether a kernel can run a case.
    - `parallel`: the number of blocks that the device runs side by side.
    """
    most = max((problem.flops(problem.case(g.shape, g.variant)) for g in given.values()), default=0)
    found: list[tuple[int, Case]] = []
    for region in regions:
        if region.exact or not region.cases:
            continue
        known = [point for point in tried if _teaches(point, region)]
        labels = {point.label for point in known} | {*given} | {case.label for _, case in found}
        rng = random.Random(f"drawn {seed} {region.words} {len(known)}")
        cases = {
            case.label: case
            for case in _inside(problem, region, given, rng)
            if case.label not in labels and problem.flops(case) <= most
        }
        if not (cases and known):
            continue
        points = [point_of(problem, case) for case in cases.values()]
        lows = predicted_lows(known, region.kernel, points, parallel)
        is_new = not any(point.label not in given and region.holds(point) for point in known)
        sure = math.inf if is_new else math.log(_SURE)
        chosen: list[Point] = []
        for number in np.argsort(lows, kind="stable"):
            if len(chosen) == _EACH or lows[number] >= sure:
                break
            point = points[number]
            if all(_doublings(point, other) >= _APART for other in chosen) and can_run(
                region.kernel, cases[point.label]
            ):
                chosen.append(point)
        found += [(region.kernel, cases[point.label]) for point in chosen]
    return found


def _teaches(point: Point, region: RuleRegion) -> bool:
    """Whether the model of the region's kernel learns from the case."""
    score = point.scores[region.kernel]
    alike = all(point.place.fixed.get(name) == value for name, value in region.fixed.items())
    return alike and score is not None and score.low > 0.0


def _doublings(one: Point, other: Point) -> float:
    """The largest difference of two sizes, in doublings."""
    return max(abs(math.log2(value / other.features[name])) for name, value in one.features.items())


def _inside(
    problem: Problem, region: RuleRegion, given: Mapping[str, GivenCase], rng: random.Random
) -> Iterator[Case]:
    """Cases of the region, around its measured ones in turn."""
    around = {label: _around(problem, given[label], rng) for label in region.cases}
    left = _CANDIDATES
    for number in range(_TRIES):
        case = next(around[region.cases[number % len(around)]], None)
        if case is not None and region.holds(point_of(problem, case)):
            yield case
            left -= 1
            if not left:
                return


def _around(problem: Problem, like: GivenCase, rng: random.Random) -> Iterator[Case]:
    """Cases of other sizes. Some of the sizes stay as they were measured, since a region may be
    wide in one size alone."""
    features = point_of(problem, problem.case(like.shape, like.variant)).features
    varying = {"seq_len", "batch", *features} - _KEPT
    sizes = {name: int(value) for name, value in like.shape.items() if name in varying}
    leaders = [name for name in sizes if _leader(name, sizes) == name]
    for number in range(_TRIES if leaders else 0):
        drawn = [name for name in leaders if rng.random() < 0.5] or [rng.choice(leaders)]
        tile = _TILES[number % len(_TILES)]
        # A narrow region is met by every other group of tries, whose sizes are near.
        power = 1 if number // len(_TILES) % 2 == 0 else 3
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
