"""Medians with bootstrap confidence intervals (Efron 1979, percentile method)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its 95% confidence bounds, in the samples' unit."""

    median: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        return (self.high - self.low) / (2 * self.median)


def median_interval(samples: Sequence[float]) -> Interval:
    """Median of `samples` with its bootstrap interval; the same samples, in any order, give the
    same bounds."""
    values = np.sort(np.asarray(samples, dtype=np.float64))
    if values.size == 0:
        raise ValueError("no samples")
    lower, upper = _middle_ranks(values.size)
    medians = (values[lower] + values[upper]) / 2
    low, high = np.percentile(medians, (2.5, 97.5))
    return Interval(float(np.median(values)), float(low), float(high))


@functools.lru_cache(maxsize=256)
def _middle_ranks(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Ranks, from 0, of the two middle samples of each resample of `size` (for an odd size, the
    same rank twice). The ranks do not depend on the samples, so they are drawn once: racing needs
    them after every round."""
    draws = np.random.default_rng(0).integers(0, size, (_RESAMPLES, size))
    draws.sort(axis=1)
    return draws[:, (size - 1) // 2].copy(), draws[:, size // 2].copy()
