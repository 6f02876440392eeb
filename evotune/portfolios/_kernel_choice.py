"""Chooses the few kernels of a matrix that serve all cases best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from evotune.portfolios.matrix_store import Point

_MOST_SUBSETS = 20_000
_EPSILON = 1e-12


def chosen_kernels(points: Sequence[Point], most: int) -> list[int]:
    """At most `most` kernels with the greatest weighted geometric mean of speedups, where each case
    gets the best of them, or PyTorch where none wins. Of equal sets the smallest, then the first.

    Exact where there are few subsets; else greedy, then improved by swaps.
    """
    kernels = range(len(points[0].scores)) if points else range(0)
    gains = [[point.weight * max(0.0, point.gain(k)) for point in points] for k in kernels]
    useful = [k for k in kernels if any(gain > 0.0 for gain in gains[k])]
    most = min(most, len(useful))
    if sum(math.comb(len(useful), n) for n in range(most + 1)) <= _MOST_SUBSETS:
        subsets = (s for n in range(most + 1) for s in itertools.combinations(useful, n))
        return list(_best(gains, subsets))
    return sorted(_swapped(gains, useful, _greedy(gains, useful, most)))


def mean_speedup(points: Sequence[Point], kernels: Iterable[int]) -> float:
    """The weighted geometric mean of speedups with these kernels; 1 for no cases."""
    known = list(kernels)
    total = sum(point.weight for point in points)
    served = sum(p.weight * max([0.0, *(p.gain(k) for k in known)]) for p in points)
    return math.exp(served / total) if total else 1.0


def _value(gains: Sequence[Sequence[float]], kernels: Sequence[int]) -> float:
    return sum(map(max, zip(*(gains[k] for k in kernels), strict=True))) if kernels else 0.0


def _best(gains: Sequence[Sequence[float]], subsets: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    found: tuple[int, ...] = ()
    best = 0.0
    for subset in subsets:
        value = _value(gains, subset)
        if value > best + _EPSILON:
            found, best = subset, value
    return found


def _greedy(gains: Sequence[Sequence[float]], useful: Sequence[int], most: int) -> list[int]:
    found: list[int] = []
    while len(found) < most:
        left = [k for k in useful if k not in found]
        added = max(left, key=lambda k: (_value(gains, [*found, k]), -k))
        if _value(gains, [*found, added]) <= _value(gains, found) + _EPSILON:
            break
        found.append(added)
    return found


def _swapped(
    gains: Sequence[Sequence[float]], useful: Sequence[int], kernels: list[int]
) -> list[int]:
    """Replaces one kernel at a time as long as that helps."""
    while True:
        swaps = (
            [*kernels[:at], k, *kernels[at + 1 :]]
            for at in range(len(kernels))
            for k in useful
            if k not in kernels
        )
        best = max(swaps, key=lambda s: _value(gains, s), default=kernels)
        if _value(gains, best) <= _value(gains, kernels) + _EPSILON:
            return kernels
        kernels = best
