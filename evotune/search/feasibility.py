"""A model of the probability that a configuration fails."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from evotune.search.encoding import Floats, Rows
from evotune.search.kernel import Kernel
from evotune.search.posterior import Posterior

_LEAST_DEVIATION: Final = 0.1  # of a predicted share of successes, which is never certain
_LEAST_CHANCE: Final = 1e-6


class Feasibility:
    """The chance of success of every candidate of a pool.

    It is a Gaussian process of its own on 1 for a success and 0 for a failure, with its own fitted
    kernel: failures depend on other parameters than times do, and on few of them. So the model
    of times never sees a failure as a slow configuration.
    """

    def __init__(self, kernel: Kernel, rows: Rows, succeeded: Floats, pool: Rows) -> None:
        self._kernel = kernel
        self._pool = pool
        posterior = Posterior(kernel, rows, succeeded, pool)
        deviations = np.maximum(posterior.deviations(), _LEAST_DEVIATION)
        z = (posterior.means([]) - 0.5) / deviations
        chances = np.fromiter((0.5 * math.erfc(-x / math.sqrt(2)) for x in z), float, len(z))
        self.chances: Floats = np.maximum(chances, _LEAST_CHANCE)

    def fail(self, row: Rows) -> None:
        """Adds a failure: the more similar a candidate, the more its chance of success falls."""
        alike = self._kernel.between(row[None, :], self._pool)[0]
        self.chances = np.maximum(self.chances * (1 - alike), _LEAST_CHANCE)
