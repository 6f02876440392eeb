"""What a Gaussian process believes of a pool of candidates, updated trial by trial."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from evotune.search.kernel import Floats, Kernel, Rows

_LEAST_VARIANCE: Final = 1e-9


class Posterior:
    """Mean and variance of every candidate, given `rows` with `values` (higher is better).

    Further trials are appended in the order of their proposals. One that is pending has no value
    yet: it lowers the variance around it and leaves the means alone, so that what is asked next
    lies elsewhere. Its value can be filled in later, and the result is what it would have been
    had it been known at once. Appending costs rows x candidates, not the cube of the rows.
    """

    def __init__(self, kernel: Kernel, rows: Rows, values: Floats, pool: Rows) -> None:
        self._kernel = kernel
        self._rows = rows
        self._pool = pool
        covariance = kernel.between(rows, rows)
        covariance[np.diag_indices_from(covariance)] += kernel.noise
        self._whiten: Floats = np.linalg.inv(np.linalg.cholesky(covariance))
        self._centre = float(values.mean())
        white = self._whiten @ (values - self._centre)
        count = len(values)
        self.amplitude = (float(white @ white) + 1) / (count + 1)
        self._coordinates = self._whiten @ kernel.between(rows, pool)  # rows x candidates
        self._white = white
        self._base_mean: Floats = self._centre + white @ self._coordinates
        self._base_variance: Floats = 1 - np.einsum(
            "ij,ij->j", self._coordinates, self._coordinates
        )
        self.truncate(0)

    @property
    def appended(self) -> int:
        return len(self._own)

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` appended trials."""
        if count == 0:
            self._own: list[Floats] = []  # coordinates of each appended trial, then its residue
            self._extra = self._coordinates[:0]  # appended trials x candidates
            self._appended_rows = self._rows[:0]
        else:
            self._own = self._own[:count]
            self._extra = self._extra[:count]
            self._appended_rows = self._appended_rows[:count]
        self.variance: Floats = np.maximum(
            self._base_variance - (self._extra**2).sum(axis=0), _LEAST_VARIANCE
        )

    def append(self, row: Rows) -> None:
        """A further trial; its value is taken from `set_values`."""
        row = row[None, :]
        own = self._whiten @ self._kernel.between(self._rows, row)[:, 0]
        correlations = self._kernel.between(self._appended_rows, row)[:, 0]
        for earlier, correlation in zip(self._own, correlations, strict=True):
            own = np.append(own, (correlation - earlier[:-1] @ own) / earlier[-1])
        residue = math.sqrt(max(1 + self._kernel.noise - float(own @ own), _LEAST_VARIANCE))
        count = len(self._rows)
        along = own[:count] @ self._coordinates + own[count:] @ self._extra
        extra = (self._kernel.between(row, self._pool)[0] - along) / residue
        self._own.append(np.append(own, residue))
        self._extra = np.vstack([self._extra, extra])
        self._appended_rows = np.vstack([self._appended_rows, row])
        self.variance = np.maximum(self.variance - extra**2, _LEAST_VARIANCE)

    def means(self, values: list[float | None]) -> Floats:
        """Of all candidates, given the values of the appended trials, None for unknown ones."""
        white = self._white
        for own, value in zip(self._own, values, strict=True):
            surprise = 0.0
            if value is not None:
                surprise = (value - self._centre - float(own[:-1] @ white)) / own[-1]
            white = np.append(white, surprise)
        means: Floats = self._base_mean + white[len(self._rows) :] @ self._extra
        return means

    def deviations(self) -> Floats:
        """Standard deviations of all candidates, in the unit of the values."""
        deviations: Floats = np.sqrt(self.amplitude * self.variance)
        return deviations


def log_expected_improvement(means: Floats, deviations: Floats, best: float) -> Floats:
    """ln E[max(0, f - best)]; ordered by mean where that underflows."""
    z = (means - best) / deviations
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    tail = np.fromiter((0.5 * math.erfc(-x / math.sqrt(2)) for x in z), float, len(z))
    improvement = deviations * (density + z * tail)
    worth: Floats = np.log(np.maximum(improvement, 1e-300)) + 1e-6 * z
    return worth
