"""The search's own model, fitted to all trials of a run, and asked what a choice is worth.

It is the Gaussian process of `gaussian_process.py`, and it predicts differences of fitness with
their deviations. Beside the kernel, the covariance has a linear part in figures of each
configuration that are known without running it (threads, waves, spills, ...): the process then
explains only the rest. A fitness here is ln(speedup), or -ln(time) on a recorded space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from evotune.search.gaussian_process import (
    Encoder,
    Floats,
    Kernel,
    Rows,
    default_kernel,
    fit_kernel,
    worth_fitting,
)
from evotune.space.parameters import Parameter
from evotune.trial import Value

_MOST_ROWS: Final = 448  # trials that a model is built on, as in the search
_FITS: Final = 3  # each goes on from the kernel before
_LEAST_TRIALS: Final = 4
_LARGEST_GAP: Final = 1.5
"""A fitness further than this below the best, in ln, counts as this far below: a configuration that
is ten times slower says nothing on the choices that matter, and would set the scale."""
_FIGURE_SCALE: Final = 0.5  # the prior deviation of a figure's slope, in deviations of the fitness
_THREADS: Final = ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Difference:
    """A predicted difference of fitness, with the deviation of the prediction."""

    mean: float
    deviation: float

    @property
    def low(self) -> float:
        return self.mean - 1.96 * self.deviation

    @property
    def high(self) -> float:
        return self.mean + 1.96 * self.deviation

    @property
    def is_sure(self) -> bool:
        """Whether the 95% interval leaves out 0."""
        return abs(self.mean) > 1.96 * self.deviation


class TrialModel:
    """A model of the fitness of valid configurations. `figures`: for each configuration further
    numbers, the same names for each; empty for none."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        configurations: Sequence[Mapping[str, Value]],
        fitness: Sequence[float],
        figures: Sequence[Sequence[float]] = (),
        seed: int = 0,
    ) -> None:
        """ValueError with fewer than four configurations."""
        if len(configurations) < _LEAST_TRIALS:
            raise ValueError(f"a model needs {_LEAST_TRIALS} valid configurations")
        self._encoder = Encoder(parameters)
        rng = np.random.default_rng(seed)
        values = np.array(fitness, dtype=np.float64)
        chosen = _most_telling(values, rng)
        values = np.maximum(values[chosen], values.max() - _LARGEST_GAP)
        rows = self._rows([configurations[i] for i in chosen])
        self._figures = _Figures([figures[i] if figures else () for i in chosen])
        with _THREADS.limit(limits=1, user_api="blas"):
            self._kernel = self._fitted(rows, values, rng)
            self._solve(rows, values)

    def _fitted(self, rows: Rows, values: Floats, rng: np.random.Generator) -> Kernel:
        kernel = default_kernel(self._encoder.axes)
        used = worth_fitting(values, rng)
        for _ in range(_FITS):
            kernel, _ = fit_kernel(kernel, self._encoder.axes, rows[used], values[used], rng)
        return kernel

    def _solve(self, rows: Rows, values: Floats) -> None:
        self._known = rows
        self._linear = self._figures.known
        covariance = self._covariance(rows, self._linear, rows, self._linear)
        covariance[np.diag_indices_from(covariance)] += self._kernel.noise
        self._whiten: Floats = np.linalg.inv(np.linalg.cholesky(covariance))
        self._centre = float(values.mean())
        self._white = self._whiten @ (values - self._centre)
        count = len(values)
        self._amplitude = (float(self._white @ self._white) + 1e-6) / (count + 1)

    def _covariance(self, first: Rows, one: Floats, second: Rows, other: Floats) -> Floats:
        found = self._kernel.between(first, second)
        if one.shape[1]:
            found = found + _FIGURE_SCALE**2 * (one @ other.T)
        return found

    def _rows(self, configurations: Sequence[Mapping[str, Value]]) -> Rows:
        return self._encoder.rows([self._encoder.indices(c) for c in configurations])

    @property
    def noise(self) -> float:
        """The deviation of one measurement, in ln, as the fit found it."""
        return math.sqrt(self._amplitude * self._kernel.noise)

    def knows(self, configuration: Mapping[str, Value]) -> bool:
        """Whether each value is in its parameter's domain."""
        try:
            self._encoder.indices(configuration)
        except (ValueError, KeyError):
            return False
        return True

    def expected(self, configuration: Mapping[str, Value], figures: Sequence[float] = ()) -> float:
        """The predicted fitness. Of a configuration that was measured it is nearer to its
        neighbours' than the measurement is."""
        rows = self._rows([configuration])
        linear = self._figures.of([figures], 1)
        with _THREADS.limit(limits=1, user_api="blas"):
            between = self._covariance(self._known, self._linear, rows, linear)
            return self._centre + float((self._white @ (self._whiten @ between))[0])

    def contrasts(
        self,
        configurations: Sequence[Mapping[str, Value]],
        weights: NDArray[np.float64],
        figures: Sequence[Sequence[float]] = (),
    ) -> list[Difference]:
        """Weighted sums of the predicted fitness. `weights` is sums x configurations, and each of
        its rows sums to 0."""
        rows = self._rows(configurations)
        linear = self._figures.of(figures, len(rows))
        with _THREADS.limit(limits=1, user_api="blas"):
            between = self._covariance(self._known, self._linear, rows, linear)
            coordinates = self._whiten @ between
            means = weights @ (self._white @ coordinates)
            projected = weights @ coordinates.T
            own = weights @ self._covariance(rows, linear, rows, linear)
        variances = np.einsum("ij,ij->i", own, weights) - np.einsum(
            "ij,ij->i", projected, projected
        )
        deviations = np.sqrt(self._amplitude * np.maximum(variances, 0.0))
        return [Difference(float(m), float(d)) for m, d in zip(means, deviations, strict=True)]

    def changes(
        self,
        start: Mapping[str, Value],
        changed: Sequence[Mapping[str, Value]],
        figures: Sequence[Sequence[float]] = (),
    ) -> list[Difference]:
        """The predicted fitness of each changed configuration, less that of `start`. `figures`
        begin with those of `start`."""
        if not changed:
            return []
        weights = np.concatenate([-np.ones((len(changed), 1)), np.eye(len(changed))], axis=1)
        return self.contrasts([start, *changed], weights, figures)


class _Figures:
    """Figures in deviations from their mean over the known configurations."""

    def __init__(self, known: Sequence[Sequence[float]]) -> None:
        table = np.array(known, dtype=np.float64).reshape(len(known), len(known[0]))
        self._mean = table.mean(axis=0)
        self._spread = table.std(axis=0)
        self._used = self._spread > 1e-9
        self.known: Floats = self._scaled(table)

    def _scaled(self, table: Floats) -> Floats:
        if not len(self._mean):
            return np.empty((len(table), 0))
        used = self._used
        scaled: Floats = (table[:, used] - self._mean[used]) / self._spread[used]
        return scaled

    def of(self, figures: Sequence[Sequence[float]], count: int) -> Floats:
        if not len(self._mean):
            return np.empty((count, 0))
        if len(figures) != count:
            return np.zeros((count, int(self._used.sum())))
        return self._scaled(np.array(figures, dtype=np.float64))


def _most_telling(fitness: Floats, rng: np.random.Generator) -> NDArray[np.intp]:
    """The trials that the model is built on: the best half of the most, the others drawn."""
    if len(fitness) <= _MOST_ROWS:
        return np.arange(len(fitness))
    best = np.argsort(-fitness, kind="stable")
    half = _MOST_ROWS // 2
    return np.concatenate([best[:half], rng.choice(best[half:], _MOST_ROWS - half, replace=False)])
