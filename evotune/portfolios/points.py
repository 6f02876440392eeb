"""A case as the choice of kernels and the rule see it: its place, weight, and kernels' scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evotune.problems import UserProblem
from evotune.problems.attention import Attention
from evotune.problems.problem import Case, Place, Problem
from evotune.problems.short_cases import place_with_ratio

BATCH_HEADS = "batch_heads"
"""batch * heads: the number of attentions that a launch computes side by side."""


@dataclass(frozen=True, slots=True)
class Score:
    """A kernel on a case: the baseline's time / its time, and the lower end of the interval.

    `won`: a package may serve the case with it. A kernel that the gate refused there has speedup 0.
    """

    speedup: float
    low: float
    won: bool


REFUSED = Score(0.0, 0.0, won=False)


@dataclass(frozen=True, slots=True)
class Point:
    """A case. `scores` are by kernel; None where the kernel cannot run it at all, so that a package
    never tries."""

    label: str
    weight: float
    place: Place
    features: Mapping[str, int]
    scores: tuple[Score | None, ...] = ()

    def gain(self, kernel: int) -> float:
        """ln of the speedup over PyTorch that a package reaches with this kernel at hand."""
        score = self.scores[kernel]
        return math.log(score.speedup) if score is not None and score.won else 0.0

    def with_scores(self, scores: Sequence[Score | None]) -> Point:
        return Point(self.label, self.weight, self.place, self.features, tuple(scores))


def point_of(problem: Problem, case: Case, weight: float = 1.0) -> Point:
    """A case without scores. Its features are the sizes by which rules tell cases apart."""
    place = place_with_ratio(problem, case)
    ranged = place.ranged
    if isinstance(problem, Attention):
        features = {BATCH_HEADS: int(ranged["batch"]) * int(ranged["heads"])}
        features |= {name: int(ranged[name]) for name in ("seq_len_q", "seq_len_k")}
    else:
        known = problem.sizes if isinstance(problem, UserProblem) else tuple(ranged)
        features = {name: int(ranged[name]) for name in known if isinstance(ranged.get(name), int)}
    return Point(case.label, weight, place, features)


def distance(one: Point, other: Point, variants: Sequence[str] = ()) -> float:
    """The distance of two cases: the root of the sum of squares of log2 of the ratios of their
    sizes. Another variant counts as a ratio of 2. Another compiled-in value counts as
    `OTHER_BINARY`, which is more than any sizes give."""
    sizes = sum(
        math.log2(value / other.features[name]) ** 2
        for name, value in one.features.items()
        if name in other.features
    )
    for name, own in one.place.fixed.items():
        if other.place.fixed.get(name) != own:
            sizes += 1.0 if name in variants else OTHER_BINARY**2
    for name, ratio in one.place.ranged.items():
        if name in ("group", "length_ratio") and name in other.place.ranged:
            sizes += math.log2(ratio / other.place.ranged[name]) ** 2
    return math.sqrt(sizes)


OTHER_BINARY = 64.0


def independent_features(points: Sequence[Point]) -> Iterator[str]:
    """The features without those that equal an earlier one in every case, as both lengths do in
    self-attention."""
    kept: list[str] = []
    for name in points[0].features:
        column = [point.features[name] for point in points]
        if all([point.features[known] for point in points] != column for known in kept):
            kept.append(name)
            yield name
