"""Regions that hold one case of the list each.

A region ends where a case between the measured ones was lost. That leaves some won cases of the
list to PyTorch, and others to a slower kernel. But a program has these cases, and each kernel was
measured on them. So the best kernel serves such a case, and no case near it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from evotune.portfolios.points import Point, Score
from evotune.portfolios.rule import RuleRegion, kernel_at, single_case
from evotune.trial import Region

MOST: Final = 16
"""At most so many regions, and the greatest gains first, since people read the rule."""


class _Gain(NamedTuple):
    """`value`: the case's weight times ln of the speedup over that of the other regions."""

    value: float
    region: RuleRegion


def single_cases(
    regions: Sequence[RuleRegion],
    points: Sequence[Point],
    domains: Mapping[int, Sequence[Region]],
) -> list[RuleRegion]:
    """The regions that come before `regions`: of `points` that no kernel serves there, or a kernel
    that is surely slower than another one. `domains`: those of the kernels that may serve."""
    found = sorted(
        (gain for point in points for gain in _gain(regions, point, domains)),
        key=lambda gain: (-gain.value, gain.region.cases),
    )
    return [gain.region for gain in found[:MOST]]


def _gain(
    regions: Sequence[RuleRegion], point: Point, domains: Mapping[int, Sequence[Region]]
) -> Iterator[_Gain]:
    served = kernel_at(regions, point)
    now = 1.0 if served is None else _speedup(point.scores[served])
    able = [
        (score.low, kernel, domain)
        for kernel, own in domains.items()
        for domain in own
        if (score := point.scores[kernel]) is not None
        and score.won
        and point.place.is_in(domain.fixed, domain.ranges)
    ]
    if not able:
        return
    low, kernel, domain = max(able, key=lambda each: each[:2])
    if low > now:
        speedup = _speedup(point.scores[kernel])
        yield _Gain(point.weight * math.log(speedup / now), single_case(point, kernel, domain, low))


def _speedup(score: Score | None) -> float:
    """Against PyTorch, which serves where the gate refused the kernel."""
    return score.speedup if score is not None and score.speedup > 0.0 else 1.0
