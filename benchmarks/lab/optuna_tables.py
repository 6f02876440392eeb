"""Optuna's multivariate TPE on discrete parameters, from tables: the same suggestions, sooner.

A suggestion outside the space is drawn again, hundreds of times where few combinations are members,
and Optuna builds its densities anew for each draw. Between two outcomes the densities do not
change. So here Optuna builds them once, and they are tabulated: the probability of each index under
each kernel. A draw takes the same random numbers in the same order and gives the same suggestion
(`python benchmarks/lab/search_peers.py RECORDING…` compares them).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.samplers import TPESampler
from optuna.samplers._tpe.sampler import _split_trials, default_gamma
from optuna.trial import TrialState
from scipy.special import ndtr

_TINY = 1e-300


class _Mixture(NamedTuple):
    """The kernels of a density.

    - weights (kernels): the weight of each kernel
    - cumulative, log_probability: for each parameter the probability of each index under each
      kernel (kernels, indices), summed up and as a logarithm
    """

    weights: NDArray[np.float64]
    cumulative: list[NDArray[np.float64]]
    log_probability: list[NDArray[np.float64]]

    def draw(self, rng: np.random.RandomState, size: int) -> NDArray[np.int64]:
        """Indices (size, parameters), drawn with the same random numbers as Optuna's."""
        kernels = rng.choice(len(self.weights), p=self.weights, size=size)
        quantiles = rng.uniform(low=0, high=1, size=(len(self.cumulative), size))
        return np.stack(
            [
                np.minimum((table[kernels] < q[:, None]).sum(axis=1), table.shape[1] - 1)
                for table, q in zip(self.cumulative, quantiles, strict=True)
            ],
            axis=1,
        )

    def log_density(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """The ln density (size) of each row of `indices` (size, parameters)."""
        log = np.log(self.weights)[None, :] + sum(
            table[:, column].T
            for table, column in zip(self.log_probability, indices.T, strict=True)
        )
        peak = log.max(axis=1)
        return np.asarray(np.log(np.exp(log - peak[:, None]).sum(axis=1)) + peak)


def _tabulated(density: Any) -> _Mixture:
    """The tables of an Optuna `_ParzenEstimator` over integers from 0 on, or over categories."""
    mixture = density._mixture_distribution
    cumulative, logs = [], []
    for kernels in mixture.distributions:
        if not hasattr(kernels, "mu"):
            cumulative.append(np.cumsum(kernels.weights, axis=1))
            logs.append(np.log(np.maximum(kernels.weights, _TINY)))
            continue
        edges = np.arange(kernels.low, kernels.high + 2) - 0.5
        edges = (edges[None, :] - kernels.mu[:, None]) / kernels.sigma[:, None]
        low, high = edges[:, :-1], edges[:, 1:]
        # The difference of two numbers near 1 loses its digits; that of the other tail keeps them.
        mass = np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
        mass /= mass.sum(axis=1, keepdims=True)
        cumulative.append(np.cumsum(mass, axis=1))
        logs.append(np.log(np.maximum(mass, _TINY)))
    return _Mixture(mixture.weights, cumulative, logs)


class TabulatedTPESampler(TPESampler):
    """The sampler for one study. It handles only integer parameters from 0 on, or only categories;
    one objective; and no trials in flight."""

    _known: int = -1
    _below: _Mixture
    _above: _Mixture

    def _sample(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
        states = [TrialState.COMPLETE, TrialState.PRUNED]
        trials = study._get_trials(deepcopy=False, states=states, use_cache=True)
        if len(trials) != self._known:
            halves = _split_trials(study, trials, default_gamma(len(trials)))
            self._below, self._above = (
                _tabulated(
                    self._build_parzen_estimator(study, search_space, half, handle_below=below)
                )
                for half, below in zip(halves, (True, False), strict=True)
            )
            self._known = len(trials)
        drawn = self._below.draw(self._rng.rng, self._n_ei_candidates)
        best = np.argmax(self._below.log_density(drawn) - self._above.log_density(drawn))
        return {
            name: search_space[name].to_external_repr(int(i))
            for name, i in zip(search_space, drawn[best], strict=True)
        }
