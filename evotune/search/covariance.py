"""The covariance of a Gaussian process over configurations, and its fit.

A configuration is a row of value indices, one a parameter. The correlation of two rows is a
product over parameters of

    (1 - category) * matern32(distance / length) + category * [same value]

So every parameter is a mixture of a smooth axis and a bag of unrelated values, and the data
decide the mixture. GPU kernels have both: more warps change the time gradually, while a tile size
that divides the problem's size stands out from both its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evotune.search._encoding import Floats, Rows
from evotune.trial import Json

_FIT_ROWS: Final = 96  # a fit costs the cube of this
_FIT_STEPS: Final = 80
_LENGTHS: Final = (0.05, 20.0)  # in widths of the axis
_CATEGORIES: Final = (1e-3, 0.98)
_NOISES: Final = (1e-4, 0.5)  # variance of the noise, in variances of the function
_TYPICAL_CATEGORY: Final = -2.5  # log-odds
_TYPICAL_NOISE: Final = 1e-2


@dataclass(frozen=True, slots=True)
class Kernel:
    """`tables[i][d]` is the log correlation along parameter i at an index difference of d."""

    lengths: tuple[float, ...]
    categories: tuple[float, ...]
    noise: float
    tables: tuple[Floats, ...]

    def between(self, first: Rows, second: Rows) -> Floats:
        """Correlations, first x second."""
        total = np.zeros((len(first), len(second)))
        for i, table in enumerate(self.tables):
            if len(table) > len(first):
                total += table.take(np.abs(first[:, i, None] - second[None, :, i]))
            else:  # an axis with few places: each place is compared once
                places = np.arange(len(table))
                along = table.take(np.abs(places[:, None] - second[None, :, i]))
                total += along.take(first[:, i], axis=0)
        return np.exp(total)

    def to_json(self) -> Json:
        return [list(self.lengths), list(self.categories), self.noise]

    @classmethod
    def from_json(cls, data: Json, axes: Sequence[Floats]) -> Kernel:
        """The inverse of `to_json`. Raises ValueError or TypeError for other data."""
        lengths, categories, noise = data
        tables = (_table(*found) for found in zip(axes, lengths, categories, strict=True))
        return cls(tuple(lengths), tuple(categories), noise + 0.0, tuple(tables))


def default_kernel(axes: Sequence[Floats]) -> Kernel:
    category = 1 / (1 + math.exp(-_TYPICAL_CATEGORY))
    return Kernel(
        (1.0,) * len(axes),
        (category,) * len(axes),
        _TYPICAL_NOISE,
        tuple(_table(axis, 1.0, category) for axis in axes),
    )


def _table(axis: Floats, length: float, category: float) -> Floats:
    scaled = math.sqrt(3) * axis / length
    table = (1 - category) * (1 + scaled) * np.exp(-scaled)
    table[0] += category
    return np.log(table + 1e-30)


def fit_kernel(
    start: Kernel, axes: Sequence[Floats], rows: Rows, values: Floats, rng: np.random.Generator
) -> tuple[Kernel, float]:
    """The most probable kernel on a seeded random walk from `start`, and its log probability.

    `values` (higher is better, any scale) belong to `rows`. `worth_fitting` chooses the rows among
    many trials.
    """
    differences = [np.abs(rows[:, i, None] - rows[None, :, i]) for i in range(len(axes))]
    lengths, categories, noise = list(start.lengths), list(start.categories), start.noise
    tables = list(start.tables)
    total = sum(
        (t[d] for t, d in zip(tables, differences, strict=True)), np.zeros((len(rows),) * 2)
    )
    best = _evidence(total, noise, values) + _prior(lengths, categories, noise)
    for _ in range(_FIT_STEPS):
        i = int(rng.integers(len(axes) + 1))
        step = rng.normal()
        if i == len(axes):
            trial = _within(noise * math.exp(1.2 * step), _NOISES)
            found = _evidence(total, trial, values) + _prior(lengths, categories, trial)
            if found > best:
                best, noise = found, trial
            continue
        length, category = lengths[i], categories[i]
        if rng.random() < 0.6:
            length = _within(length * math.exp(0.8 * step), _LENGTHS)
        else:
            odds = math.log(category / (1 - category)) + 1.5 * step
            category = _within(1 / (1 + math.exp(-odds)), _CATEGORIES)
        table = _table(axes[i], length, category)
        changed = total + (table - tables[i])[differences[i]]
        old = lengths[i], categories[i]
        lengths[i], categories[i] = length, category
        found = _evidence(changed, noise, values) + _prior(lengths, categories, noise)
        if found > best:
            best, total, tables[i] = found, changed, table
        else:
            lengths[i], categories[i] = old
    return Kernel(tuple(lengths), tuple(categories), noise, tuple(tables)), best


def worth_fitting(values: Floats, rng: np.random.Generator) -> NDArray[np.intp]:
    """The trials to fit on, 96 at most. Half are the best ones, where the kernel has to be right;
    the others are drawn."""
    if len(values) <= _FIT_ROWS:
        return np.arange(len(values))
    best = np.argsort(-values, kind="stable")
    others = rng.choice(best[_FIT_ROWS // 2 :], _FIT_ROWS - _FIT_ROWS // 2, replace=False)
    return np.concatenate([best[: _FIT_ROWS // 2], others])


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _evidence(log_correlations: Floats, noise: float, values: Floats) -> float:
    """The log marginal likelihood of a kernel, at its best amplitude."""
    covariance = np.exp(log_correlations)
    covariance[np.diag_indices_from(covariance)] += noise
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return -math.inf
    centred = values - values.mean()
    explained = float(centred @ np.linalg.solve(covariance, centred))
    count = len(values)
    amplitude = (explained + 1) / (count + 1)
    return -0.5 * count * math.log(amplitude) - float(np.log(np.diag(factor)).sum())


def _prior(lengths: Sequence[float], categories: Sequence[float], noise: float) -> float:
    """The log density of a wide prior, so that few evaluations do not lead to extreme kernels."""
    odds = (math.log(c / (1 - c)) - _TYPICAL_CATEGORY for c in categories)
    return (
        -0.5 * sum(math.log(length) ** 2 for length in lengths)
        - 0.5 * sum((o / 2) ** 2 for o in odds)
        - 0.5 * (math.log(noise / _TYPICAL_NOISE) / 2) ** 2
    )
