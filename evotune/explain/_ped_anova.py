"""PED-ANOVA: which parameters decide whether a trial is among the best.

Source: Watanabe, Bansal, Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
Arbitrary Subspaces" (IJCAI 2023, arXiv 2304.10255). A parameter is important if the distribution of
its values among the best trials differs from the one among all trials. The difference is the
Pearson divergence of two one-dimensional kernel density estimates. No model of the fitness is
fitted, and since both densities are of the trials, it does not matter where the search has looked
most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_BEST: Final = 0.1  # the share of trials that count as the best
_LEAST_BEST: Final = 8  # of them, as far as they are no more than half of the trials
_LEAST_BANDWIDTH: Final = 0.5  # in steps of an ordered parameter
_PRIOR: Final = 1.0  # the weight of the uniform distribution, in trials

_Floats = NDArray[np.float64]


def importances(
    places: NDArray[np.int64],
    fitness: _Floats,
    cardinalities: Sequence[int],
    ordered: Sequence[bool],
) -> list[float]:
    """Each parameter's share of the importance; they sum to 1, or are all 0 where nothing differs.

    `places` is trials x parameters, the index of each value; `fitness` is higher for better trials.
    """
    count = len(fitness)
    chosen = max(math.ceil(_BEST * count), min(_LEAST_BEST, count // 2))
    best = np.argsort(-fitness, kind="stable")[:chosen]
    found = [
        _divergence(
            _density(places[best, at], size, smooth=is_ordered),
            _density(places[:, at], size, smooth=is_ordered),
        )
        for at, (size, is_ordered) in enumerate(zip(cardinalities, ordered, strict=True))
    ]
    total = sum(found)
    return [value / total if total > 0 else 0.0 for value in found]


def _divergence(target: _Floats, base: _Floats) -> float:
    """The Pearson divergence: the mean of (target / base - 1)^2 under `base`."""
    return float((base * (target / base - 1) ** 2).sum())


def _density(places: NDArray[np.int64], size: int, *, smooth: bool) -> _Floats:
    """The density over `size` values, mixed with the uniform one. `smooth`: by a normal kernel of
    Scott's bandwidth, cut off at the ends of the axis."""
    counts = np.bincount(places, minlength=size).astype(np.float64)
    if smooth and size > 2 and len(places):
        bandwidth = max(_LEAST_BANDWIDTH, 1.06 * float(places.std()) * len(places) ** -0.2)
        axis = np.arange(size)
        kernels = np.exp(-0.5 * ((axis[:, None] - axis[None, :]) / bandwidth) ** 2)
        kernels /= kernels.sum(axis=1, keepdims=True)
        counts = counts @ kernels
    density: _Floats = (counts + _PRIOR / size) / (counts.sum() + _PRIOR)
    return density
