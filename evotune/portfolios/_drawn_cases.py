"""Cases between the measured ones, on which a rule is tried before it is written.

A region reaches from one measured case to the next. Between them a kernel may lose: most of all
where it won by little, and where a size is one more than a multiple of its tiles, so that the last
tile computes one row.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from evotune.portfolios.points import Point, point_of
from evotune.portfolios.rule import RuleRegion
from evotune.problems.problem import Case, Problem
from evotune.space.specs import GivenCase

_DRAWS = ((1.25, 1), (1.1, 2), (0.0, 4))
"""Around a measured case whose lower end is at least the first number, so many cases are drawn."""
_TRIES = 40
_AROUND = 3.0
"""A size is drawn between a third and three times the measured one."""
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
    measured: Sequence[Point],
    given: Mapping[str, GivenCase],
    can_run: CanRun,
    seed: int,
) -> list[tuple[int, Case]]:
    """Cases in the regions, each with the number of the region's kernel.

    They lie around the `measured` cases, whose shapes are `given` by label, and have no more
    operations than the largest of those. Numbers of heads and windows stay as they were measured.
    `can_run`: whether a kernel can run a case.

    The draws around a case do not depend on where its region ends, so most of them stay when a rule
    changes.
    """
    cases = {p.label: problem.case(given[p.label].shape, given[p.label].variant) for p in measured}
    most = max(map(problem.flops, cases.values()), default=0)
    points = {point.label: point for point in measured}
    known = {*given}
    found: list[tuple[int, Case]] = []
    for region in regions:
        for label in () if region.exact else region.cases:
            score = points[label].scores[region.kernel] if label in points else None
            if score is None:
                continue
            left = next(count for low, count in _DRAWS if score.low >= low)
            for case in _around(problem, points[label], given[label], seed):
                if case.label in known or problem.flops(case) > most:
                    continue
                if region.holds(point_of(problem, case)) and can_run(region.kernel, case):
                    known.add(case.label)
                    found.append((region.kernel, case))
                    left -= 1
                    if not left:
                        break
    return found


def _around(problem: Problem, point: Point, like: GivenCase, seed: int) -> Iterator[Case]:
    """Cases of other sizes, always the same ones for a case and a seed. Some of the sizes stay as
    they were measured, since a region may be wide in one size alone."""
    rng = random.Random(f"drawn {seed} {point.label}")
    varying = {"seq_len", "batch", *point.features} - _KEPT
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
