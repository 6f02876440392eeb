"""The posterior of a Gaussian process over a pool of candidates, updated trial by trial."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from evotune.search._encoding import Floats, Rows
from evotune.search.covariance import Kernel

_LEAST_VARIANCE: Final = 1e-9
_ROOM: Final = 32  # appended trials before the first growth
_FAR: Final = -30.0  # below this, expected improvement falls with the seventh power of z
_T_PEAK: Final = math.gamma(4.5) / (math.gamma(4) * math.sqrt(8 * math.pi))


class Posterior:
    """The mean and variance of every candidate, given `rows` with `values` (higher is better).

    Further trials are appended in the order of their proposals. A pending trial has no value yet:
    it lowers the variance around it and leaves the means alone, so that the next proposal lies
    elsewhere. Its value can be filled in later, with the same result as if it had been known at
    once. Appending costs rows x candidates, not the cube of the rows.
    """

    def __init__(self, kernel: Kernel, rows: Rows, values: Floats, pool: Rows) -> None:
        self._kernel = kernel
        self._rows = rows
        self._pool = pool
        # All tables lie in one array, so that one operation compares a row along all axes.
        self._tables = np.concatenate([*kernel.tables, np.empty(0)])
        lengths = [0, *(len(table) for table in kernel.tables)]
        self._starts = np.cumsum(lengths[:-1] or [0])[:, None][: len(kernel.tables)]
        self._everything = np.concatenate([rows, pool])
        self._columns: Rows = np.ascontiguousarray(self._everything.T)
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
        """Forgets all but the first `count` appended trials."""
        if count == 0:
            self._own: list[Floats] = []  # coordinates of each appended trial, then its residue
            # Shapes: appended trials x candidates, and axes x appended trials, with room for more.
            self._extra: Floats = np.empty((_ROOM, self._pool.shape[0]))
            self._appended: Rows = np.zeros((self._pool.shape[1], _ROOM), dtype=np.int64)
            # The appended trials' coordinates along the first trials, and the inverse of the
            # triangle of their coordinates along each other.
            self._along: Floats = np.empty((_ROOM, len(self._rows)))
            self._inverse: Floats = np.zeros((_ROOM, _ROOM))
        else:
            self._own = self._own[:count]
        self.variance: Floats = np.maximum(
            self._base_variance - (self._extra[:count] ** 2).sum(axis=0), _LEAST_VARIANCE
        )

    def append(self, row: Rows) -> None:
        """Appends a trial. Its value is an argument of `means`."""
        self._append(row, self._alike(row, self._columns))

    def extend(self, rows: Rows) -> None:
        """Appends many trials at once: the same bits as one after the other, but faster."""
        if len(rows) == 1:
            self.append(rows[0])
            return
        for row, alike in zip(rows, self._kernel.between(rows, self._everything), strict=True):
            self._append(row, alike)

    def _append(self, row: Rows, alike: Floats) -> None:
        """Appends a trial; `alike` holds its correlations with all first trials and candidates."""
        count, appended = len(self._rows), len(self._own)
        if appended == len(self._extra):
            self._extra = np.concatenate([self._extra, np.empty_like(self._extra)])
            self._appended = np.concatenate([self._appended, self._appended], axis=1)
            self._along = np.concatenate([self._along, np.empty_like(self._along)])
            self._inverse = np.pad(self._inverse, (0, appended))
        own = np.empty(count + appended + 1)
        first = own[:count] = self._whiten @ alike[:count]
        correlations = self._alike(row, self._appended[:, : max(appended, 2)])[:appended]
        inverse = self._inverse[:appended, :appended]
        rest = own[count:-1] = inverse @ (correlations - self._along[:appended] @ first)
        found = own[:-1]
        residue = math.sqrt(max(1 + self._kernel.noise - float(found @ found), _LEAST_VARIANCE))
        own[-1] = residue
        self._along[appended] = first
        self._inverse[appended, :appended] = -(rest @ inverse) / residue
        self._inverse[appended, appended] = 1 / residue
        along = first @ self._coordinates + rest @ self._extra[:appended]
        extra = (alike[count:] - along) / residue
        self._own.append(own)
        self._extra[appended] = extra
        self._appended[:, appended] = row
        self.variance = np.maximum(self.variance - extra**2, _LEAST_VARIANCE)

    def _alike(self, row: Rows, columns: Rows) -> Floats:
        """The correlations of one row with the rows in `columns` (axes x rows). For two columns or
        more they are the same bits as `Kernel.between` gives."""
        distances = np.abs(columns - row[:, None])
        total: Floats = self._tables.take(distances + self._starts).sum(axis=0)
        return np.exp(total, out=total)

    def means(self, values: list[float | None]) -> Floats:
        """The means of all candidates, given the appended trials' values (None: not known yet)."""
        count = len(self._rows)
        white = np.zeros(count + len(values))
        white[:count] = self._white
        for i, (own, value) in enumerate(zip(self._own, values, strict=True)):
            if value is not None:
                known = float(own[:-1] @ white[: count + i])
                white[count + i] = (value - self._centre - known) / own[-1]
        means: Floats = self._base_mean + white[count:] @ self._extra[: len(values)]
        return means

    def deviations(self) -> Floats:
        """The standard deviations of all candidates, in the unit of the values."""
        deviations: Floats = np.sqrt(self.amplitude * self.variance)
        return deviations


def log_expected_improvement(means: Floats, deviations: Floats, best: float) -> Floats:
    """ln E[max(0, f - best)] where (f - mean) / deviation is distributed as Student's t.

    The distribution has eight degrees of freedom, which have a closed form, since the model is at
    times wrong by far more than its deviations allow. A normal distribution would prefer a
    candidate that almost surely fails to one that the model puts five deviations too slow.
    """
    z = (means - best) / deviations
    near = np.maximum(z, _FAR)
    share = 8 / (8 + near**2)
    density = _T_PEAK * share**4.5
    series = 1 + share / 2 + 3 / 8 * share**2 + 5 / 16 * share**3
    below = 0.5 + 0.5 * near / np.sqrt(8 + near**2) * series  # the distribution function
    improvement = deviations * ((8 + near**2) / 7 * density + near * below)
    worth: Floats = np.log(improvement) - 7 * np.log(np.minimum(z, _FAR) / _FAR)
    return worth
