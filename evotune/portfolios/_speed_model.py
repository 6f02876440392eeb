"""Predicts a kernel's speedup on sizes that were not measured.

A linear model with a penalty for large coefficients (ridge regression, Bishop, "Pattern Recognition
and Machine Learning", 3.3) of the logarithm of the speedup. Its terms are the logarithms of the
sizes, their products, and how well the sizes fill tiles; of dense attention also how well its
tiles fill waves of blocks. A kernel loses most where its last tile, or its last wave, is almost
empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from evotune.portfolios.points import BATCH_HEADS, Point, independent_features

_TILES = (64, 128, 192)
"""The rows of the usual tiles."""
_REACH = 1.5
"""A measured case counts less the farther it lies from the asked ones: at so many doublings of a
size, exp(-1/2)."""
_LEAST_WEIGHT = 0.02
_PENALTY = 0.3
"""Of a coefficient whose term has a standard deviation of 1. That of the constant is 1e-6."""
_LEAST_DEVIATION = 1e-6
"""A term that hardly differs among the measured cases is taken as it is."""
_NOISE = 0.01
"""The least standard deviation of the logarithm of a measured speedup."""
_LIKELY_TERMS = 3.0
"""The number of coefficients that the penalty leaves, about."""
_QUERIES = "seq_len_q"

Reals: TypeAlias = NDArray[np.float64]


def predicted_lows(
    measured: Sequence[Point], kernel: int, asked: Sequence[Point], parallel: int
) -> Reals:
    """The logarithms of the lower ends of the `kernel`'s speedups on the `asked` cases, less a
    standard deviation of the model.

    `measured`: cases of the same fixed values, where the kernel was measured and is right.
    `parallel`: the number of multiprocessors, each of which takes one block of attention at a time.
    """
    names = list(independent_features([*measured, *asked]))
    rows = np.array([_terms(point, names, parallel) for point in (*measured, *asked)])
    known = rows[: len(measured)]
    mean, deviation = known.mean(axis=0), known.std(axis=0)
    mean[0] = 0.0  # the constant
    deviation[deviation < _LEAST_DEVIATION] = 1.0
    known, wanted = ((part - mean) / deviation for part in (known, rows[len(measured) :]))
    lows = np.log([score.low for point in measured if (score := point.scores[kernel])])
    weights = _weights(measured, asked, names)
    penalty = np.full(rows.shape[1], _PENALTY)
    penalty[0] = 1e-6
    normal = known.T @ (known * weights[:, None]) + np.diag(penalty)
    coefficients = np.linalg.solve(normal, known.T @ (weights * lows))
    errors = lows - known @ coefficients
    variance = (weights * errors**2).sum() / max(1.0, weights.sum() - _LIKELY_TERMS) + _NOISE**2
    spread = np.einsum("ij,jk,ik->i", wanted, np.linalg.inv(normal), wanted)
    found: Reals = wanted @ coefficients - np.sqrt(variance * spread)
    return found


def _terms(point: Point, names: Sequence[str], parallel: int) -> list[float]:
    sizes = [point.features[name] for name in names]
    logs = [math.log2(size) for size in sizes]
    terms = [1.0, *logs]
    terms += [a * b for a, b in itertools.combinations_with_replacement(logs, 2)]
    for rows in _TILES:
        terms += [_filled(size / rows) for size in sizes]
        if BATCH_HEADS in point.features:
            tiles = point.features[BATCH_HEADS] * math.ceil(point.features[_QUERIES] / rows)
            terms.append(_filled(tiles / parallel))
    return terms


def _filled(number: float) -> float:
    """The log2 of the filled share of so many tiles, of which the last may be in part empty."""
    return math.log2(number / math.ceil(number))


def _weights(measured: Sequence[Point], asked: Sequence[Point], names: Sequence[str]) -> Reals:
    def place(points: Sequence[Point]) -> Reals:
        return np.log2([[point.features[name] for name in names] for point in points])

    distances = ((place(measured) - place(asked).mean(axis=0)) ** 2).sum(axis=1)
    weights: Reals = np.exp(-distances / (2 * _REACH**2)) + _LEAST_WEIGHT
    return weights
