"""A transformation of fitness for the model of times: it draws the slow half together, or nothing.

Some spaces have a long tail of slow configurations, and a model that has to follow it takes the
differences among the fast ones for nothing, and is sure where it should not be. On other spaces
the tail is a part of what tells where the fast ones are. The data say which (`Warp.log_slope`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from evotune.search.encoding import Floats


@dataclass(frozen=True, slots=True)
class Warp:
    """A fitness is kept when it is behind `best` by `knee` at most; beyond, what is ever farther
    behind differs ever less (by the logarithm). The order stays."""

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
        """The log of how much it draws these together: added to the log probability of the
        warped values, it makes that comparable with the one of the values as they are."""
        behind = np.maximum(self.best - fitness, self.knee)
        return 0.0 if math.isinf(self.knee) else float(np.log(self.knee / behind).sum())
