"""Cases between the measured ones, on which a rule is tried before it is written.

A region reaches from one measured case to the next. Between them a kernel may lose: most of all
where it won by little, and where a size is one more than a multiple of its tiles, so that the last
tile computes one row.
"""

from __future__ import annotations

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
_TILES = (192, 128, 0)
"""Sizes are in turn one more than a multiple of so many rows, which are multiples of the usual
tiles of 16, 32, 64, 96, 128 and 192; 0: any size."""
_SMALLEST = 128
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
    operations than the largest of those. Heads stay as they were measured: programs have few
    numbers of them. `can_run`: whether a kernel can run a case.

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
                if case.label in known or problem.flops(case) > most or not left:
                    continue
                if region.holds(point_of(problem, case)) and can_run(region.kernel, case):
                    known.add(case.label)
                    found.append((region.kernel, case))
                    left -= 1
    return found


def _around(problem: Problem, point: Point, like: GivenCase, seed: int) -> Iterator[Case]:
    """Cases of other sizes, always the same ones for a case and a seed."""
    rng = random.Random(f"drawn {seed} {point.label}")
    varying = {"seq_len", *point.place.ranged} - {"heads", "kv_heads"}
    sizes = {name: int(value) for name, value in like.shape.items() if name in varying}
    for number in range(_TRIES):
        try:
            others = _other_sizes(sizes, _TILES[number % len(_TILES)], rng)
            yield problem.case({**like.shape, **others}, like.variant)
        except ValueError:
            continue  # sizes that the problem does not have


def _other_sizes(sizes: Mapping[str, int], tile: int, rng: random.Random) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in sizes.items():
        if name == "seq_len_k" and "seq_len_q" in found:
            # Keys go with the queries: a rule keeps the ratio of the lengths.
            found[name] = max(1, round(value * found["seq_len_q"] / sizes["seq_len_q"]))
            continue
        size = max(1, round(value * _AROUND ** rng.uniform(-1, 1)))
        found[name] = size // tile * tile + 1 if tile and size >= _SMALLEST else size
    return found
