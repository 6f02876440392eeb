"""A transformation of fitness for the model of times: it compresses the slow half, or nothing.

Some spaces have a long tail of slow configurations. A model that has to follow the tail ignores the
differences among fast configurations, and is too sure of itself. On other spaces the tail helps to
tell where the fast configurations are. The data decide (`Warp.log_slope`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from evotune.search._encoding import Floats


@dataclass(frozen=True, slots=True)
class Warp:
    """Keeps a fitness that is at most `knee` below `best`, and compresses larger differences by
    the logarithm. The order stays the same."""

    best: float = 0.0
    knee: float = math.inf  # keeps everything

    @classmethod
    def of_the_slower_half(cls, fitness: Floats) -> Warp:
        best = float(fitness.max())
        return cls(best, best - float(np.median(fitness)) or math.inf)

    def __call__(self, fitness: float) -> float:
        behind = self.best - fitness
        if behind <= self.knee:
            return fitness
        return self.best - self.knee * (1 + math.log(behind / self.knee))

    def all(self, fitness: Iterable[float]) -> Floats:
        return np.array([self(value) for value in fitness])

    def log_slope(self, fitness: Floats) -> float:
        """The log of the compression of these values. The log probability of the warped values plus
        this compares with the log probability of the plain values."""
        behind = np.maximum(self.best - fitness, self.knee)
        return 0.0 if math.isinf(self.knee) else float(np.log(self.knee / behind).sum())
