"""How likely a configuration is to fail, judged by its nearest told ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evotune.search.kernel import Floats, Rows

_REACH: Final = 0.3  # how far a verdict carries, as a sum of distances in widths of the axes
_PRIOR_WEIGHT: Final = 0.5  # of the overall rate of success, in trials


class Feasibility:
    """The chance of success of every candidate of a pool: a kernel-weighted share of successes.

    Failures are told apart from slow configurations, so that they teach the time model nothing
    wrong; here they count fully, and only nearby.
    """

    def __init__(self, axes: Sequence[Floats], pool: Rows) -> None:
        self._tables = [np.exp(-axis / _REACH) for axis in axes]
        self._pool = pool
        self._weight: Floats = np.zeros(len(pool))
        self._successes: Floats = np.zeros(len(pool))
        self._told = 0
        self._succeeded = 0

    def add(self, rows: Rows, succeeded: Sequence[bool]) -> None:
        flags = np.array(succeeded, dtype=float)
        # In parts, so that ten thousand trials do not need gigabytes.
        for start in range(0, len(rows), 512):
            part = rows[start : start + 512]
            similarity = np.ones((len(part), len(self._pool)))
            for i, table in enumerate(self._tables):
                similarity *= table[np.abs(part[:, i, None] - self._pool[None, :, i])]
            self._weight = self._weight + similarity.sum(axis=0)
            self._successes = self._successes + flags[start : start + 512] @ similarity
        self._told += len(flags)
        self._succeeded += int(flags.sum())

    def log_chances(self) -> Floats:
        rate = (self._succeeded + 1) / (self._told + 1)
        chances = (self._successes + _PRIOR_WEIGHT * rate) / (self._weight + _PRIOR_WEIGHT)
        return np.log(np.maximum(chances, 1e-6))
