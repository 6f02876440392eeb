"""The published performance score of a search on a space whose every time is known.

0 is random search, 1 is the optimum from the first evaluation on, below 0 is worse than
random. Source: the autotuning methodology of Willemsen et al. (`searchspace_statistics.py`,
`baseline.py`, `report_experiments.py` of AutoTuningAssociation/autotuning_methodology),
with evaluations as the axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evotune.errors import UsageError

CUTOFF: Final = 0.95
MAX_BUDGET: Final = 700


class PerformanceScale:
    """Random search and the optimum on one space, between which the score is measured.

    `valid_times` are the times of all valid configurations, in any unit. Failed configurations are
    not part of the random baseline; a search pays one evaluation for each failed proposal.
    """

    def __init__(self, valid_times: Iterable[float]) -> None:
        self._worst_first: NDArray[np.float64] = np.sort(np.fromiter(valid_times, float))[::-1]
        if len(self._worst_first) == 0:
            raise UsageError("no configuration of the space has a time: nothing to score")
        self.optimum = float(self._worst_first[-1])
        self.median = float(np.median(self._worst_first))

    @property
    def target(self) -> float:
        """The time that ends a budget: 95% of the way from the median to the optimum."""
        return self.optimum + (self.median - self.optimum) * (1 - CUTOFF)

    @property
    def budget(self) -> int:
        """The evaluations that random search is expected to need for the target, at most 700."""
        count = len(self._worst_first)
        index = int(np.argmax(self._worst_first <= self.target))
        return min(MAX_BUDGET, max(1, math.ceil(index / (count + 1 - index))))

    def baseline(self, evaluations: int) -> NDArray[np.float64]:
        """The time that random search without replacement has after 1, 2, … evaluations.

        The methodology smooths by PCHIP, which passes through its points. With one point for each
        evaluation no gaps are left to smooth.
        """
        count = len(self._worst_first)
        indices = [
            min(count - 1, round(m * (count + 1) / (m + 1))) for m in range(1, evaluations + 1)
        ]
        return self._worst_first[indices]

    def score(self, times: Sequence[float | None], evaluations: int | None = None) -> float:
        """The score of one run, whose evaluations had these `times` (None: failed).

        The score is the mean of (baseline - best so far) / (baseline - optimum) over `evaluations`
        (None: the budget). The mean over runs is the score of their mean curve. A run that has
        found nothing valid yet counts as the median, where random search starts. A run that ended
        early keeps its best. Once random search has reached the optimum, a run scores 1 if it is
        there too, else 0.
        """
        length = self.budget if evaluations is None else evaluations
        best = self.best_so_far(times, length)
        baseline = self.baseline(length)
        room = baseline - self.optimum
        relative = np.where(best <= self.optimum, 1.0, 0.0)
        np.divide(baseline - best, room, out=relative, where=room > 0)
        return float(relative.mean())

    def best_so_far(self, times: Sequence[float | None], evaluations: int) -> NDArray[np.float64]:
        """The best time after each evaluation; the median before the first success."""
        padded = [math.inf if time is None else time for time in times[:evaluations]]
        padded += [math.inf] * (evaluations - len(padded))
        best = np.minimum.accumulate(np.array(padded))
        return np.where(np.isinf(best), self.median, best)

    def ends_below_random(
        self, times: Sequence[float | None], evaluations: int | None = None
    ) -> bool:
        """Whether the run's final best time is worse than the one expected of random search."""
        length = self.budget if evaluations is None else evaluations
        return bool(self.best_so_far(times, length)[-1] > self.baseline(length)[-1])
