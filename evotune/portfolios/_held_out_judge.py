"""Judges a rule by cases that it was not made of, and cuts out the cases that lose.

They are the held-out cases of the list, and cases drawn between the measured ones. A drawn case
that was not tried is cut out where a model of the kernel's speed expects a loss.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from evotune.portfolios.matrix_store import Point
from evotune.portfolios.rule import RuleRegion, cut, kernel_at

Doubted = Callable[[RuleRegion], tuple[Point, float] | None]
"""A case of a region where a loss is expected, and the expected speedup; None for no such case."""


class Cut(msgspec.Struct, frozen=True):
    """A region of the rule was cut, since its kernel lost `case`.

    `before`, `after`: the region in words, before the cut and after it; "" for nothing left.
    `drawn`: whether the case was drawn between the measured ones; else it is a held-out case.
    `predicted`: the case was not tried, and `speedup` is the model's.
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
    """How a rule serves cases; speedups are against PyTorch, which is 1 where it serves the case.

    - `mean`: the weighted geometric mean of speedups. `of_best`: that of speedup / the speedup of
      the best champion measured there.
    - `worst`: the least speedup, of the case `worst_case`.
    - `served`: the number of cases that a kernel serves.
    """

    cases: int
    served: int
    mean: float
    of_best: float
    worst: float
    worst_case: str


def held_out_labels(points: Sequence[Point], share: float, seed: int) -> set[str]:
    """The share of the cases that judges the rule. A case that is alone with its fixed values stays
    in the search. Groups that are too small for a case of their own share their cases."""
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
    """The rule without the parts that a judging case shows to lose: it was not won there."""
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
    """The rule without the parts where a loss is expected. A region has one cut, whose case is the
    worst."""
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
