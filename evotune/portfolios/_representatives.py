"""Cases that stand for others: where the first searches go."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from evotune.portfolios.matrix_store import Point, distance

Matrix: TypeAlias = npt.NDArray[np.float64]

_ROUNDS = 20


def representatives(
    points: Sequence[Point], count: int, seed: int, variants: Sequence[str] = ()
) -> list[int]:
    """The indexes of at most `count` points such that the weighted distances of all points to the
    nearest of them are small (k-medoids). The same points and seed give the same ones.

    The first is drawn, each further one lies farthest from those before it; then swaps improve
    them.
    """
    apart = _distances(points, variants)
    weights = np.array([point.weight for point in points])
    rng = random.Random(f"representatives {seed}")
    chosen = [rng.choices(range(len(points)), list(weights))[0]]
    while len(chosen) < min(count, len(points)):
        nearest = apart[:, chosen].min(axis=1)
        # Of equally far ones the heaviest, then the first.
        farthest = int(np.lexsort((-np.arange(len(points)), weights, nearest))[-1])
        if nearest[farthest] == 0.0:  # all others are like one of these
            break
        chosen.append(farthest)
    for _ in range(_ROUNDS):
        swapped = _best_swap(apart, weights, chosen)
        if swapped is None:
            break
        chosen = swapped
    return chosen


def _distances(points: Sequence[Point], variants: Sequence[str]) -> Matrix:
    apart = np.zeros((len(points), len(points)))
    for i, one in enumerate(points):
        for j in range(i):
            apart[i, j] = apart[j, i] = distance(one, points[j], variants)
    return apart


def _best_swap(apart: Matrix, weights: Matrix, chosen: Sequence[int]) -> list[int] | None:
    """The medoids with the one replaced that lowers the cost most; None where none does."""
    best = float(weights @ apart[:, chosen].min(axis=1)) * (1 - 1e-12)
    found = None
    for at in range(len(chosen)):
        others = [*chosen[:at], *chosen[at + 1 :]]
        known = apart[:, others].min(axis=1) if others else np.full(len(weights), np.inf)
        costs = weights @ np.minimum(known[:, None], apart)
        costs[others] = np.inf
        cheapest = int(costs.argmin())
        if costs[cheapest] < best:
            best, found = float(costs[cheapest]), [*chosen[:at], cheapest, *chosen[at + 1 :]]
    return found
