"""Medians with bootstrap confidence intervals (Efron 1979, percentile method)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    """Median of `samples` with its bootstrap interval; the same samples give the same bounds."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples")
    # A fixed seed: the interval is a function of the samples alone.
    draws = np.random.default_rng(0).integers(0, values.size, (_RESAMPLES, values.size))
    medians = np.median(values[draws], axis=1)
    low, high = np.percentile(medians, (2.5, 97.5))
    return Interval(float(np.median(values)), float(low), float(high))
