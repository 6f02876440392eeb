"""The surrogate filter of `evolution`: breeds a pool of candidates, and picks the most promising.

A pool and the model of it are made anew at fixed counts of told trials, ever more seldom, since
that costs tens of milliseconds; in between every trial is worked in at once, told or pending
(`posterior.py`). All of it is a pure function of the settings, the trials told and the pending
ones: what is kept between calls is a memo.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from evotune.search.feasibility import Feasibility
from evotune.search.kernel import Encoder, Floats, Kernel, Rows, default_kernel, fit_kernel
from evotune.search.posterior import Posterior, log_expected_improvement
from evotune.search.strategy import Elite
from evotune.search.streams import stream
from evotune.space.parameters import Parameter
from evotune.trial import Configuration, Json

_FIRST_MODEL: Final = 3  # trials told before the first model
_LEAST_FITTED: Final = 3  # successes before the model of times is fitted
_REFRESH_SHARE: Final = 24  # a pool lives for 1/24 of the trials told so far,
_LONGEST_POOL: Final = 64  # and for so many at most
_REFIT_GROWTH: Final = 1.4
_MODEL_ROWS: Final = 448  # trials that a model is built on at most

Breed: TypeAlias = Callable[[Sequence[Elite], random.Random], list[Configuration]]


@dataclass(slots=True)
class _Told:
    """A trial that was told; `fitness` is None when it failed."""

    configuration: Configuration
    row: list[int]
    fitness: float | None
    dropped: bool = False  # measured again since


_Success: TypeAlias = tuple[_Told, float]


@dataclass(slots=True)
class _Pool:
    """One epoch's candidates and what is believed of them."""

    start: int  # trials that were told when it was made
    candidates: list[Configuration]
    index: dict[Configuration, int]
    posterior: Posterior
    feasibility: Feasibility | None  # None while nothing failed
    best: float
    counted: int  # trials whose failure `feasibility` knows
    appended: list[Configuration] = field(default_factory=list)


class Guide:
    """Learns every trial; picks from what `breed` makes of the successes, best first."""

    def __init__(self, parameters: Sequence[Parameter], seed: int, breed: Breed) -> None:
        self._encoder = Encoder(parameters)
        self._seed = seed
        self._breed = breed
        self._told: list[_Told] = []
        self._pool: _Pool | None = None
        self._start: int | None = None  # of the pool that is current
        self._times: Kernel = default_kernel(self._encoder.axes)
        self._failures = self._times
        self._fits: list[int] = []  # counts of told trials at which a fit is due
        self._forget_memo()

    def learn(self, configuration: Configuration, fitness: float | None) -> None:
        self._told.append(_Told(configuration, self._encoder.row(configuration), fitness))

    def drop(self, configuration: Configuration) -> None:
        """Its outcomes so far do not count any more."""
        for told in self._told:
            if told.configuration == configuration:
                told.dropped = True
        self._forget_memo()

    def snapshot(self) -> Json:
        return [[list(t.configuration.values()), t.fitness, t.dropped] for t in self._told]

    def restore(self, snapshot: Json, names: Sequence[str]) -> None:
        self._told = []
        for values, fitness, dropped in snapshot:
            configuration = Configuration(dict(zip(names, values, strict=True)))
            row = self._encoder.row(configuration)
            self._told.append(_Told(configuration, row, fitness, bool(dropped)))
        self._forget_memo()

    def pick(self, pending: Sequence[Configuration]) -> Configuration | None:
        """The most promising candidate that is neither told nor pending; None when there is no
        model yet, or the pool is used up."""
        self._advance()
        start = self._start
        if start is None:
            return None
        if self._pool is None or self._pool.start != start:
            self._pool = self._make_pool(start)
        pool = self._pool
        if pool is None:
            return None
        since = self._told[start:]
        self._append(pool, [t.configuration for t in since] + list(pending))
        values = [None if t.dropped else t.fitness for t in since] + [None] * len(pending)
        worth = self._worth(pool, values)
        for configuration in pool.appended:
            place = pool.index.get(configuration)
            if place is not None:
                worth[place] = -np.inf
        chosen = int(np.argmax(worth))
        return pool.candidates[chosen] if np.isfinite(worth[chosen]) else None

    def _worth(self, pool: _Pool, values: list[float | None]) -> Floats:
        """ln of the improvement to expect of each candidate, failures taken into account."""
        best = max([pool.best, *(v for v in values if v is not None)])
        means = pool.posterior.means(values)
        worth = log_expected_improvement(means, pool.posterior.deviations(), best)
        if pool.feasibility is None:
            return worth
        for told in self._told[pool.counted :]:
            if told.fitness is None and not told.dropped:
                pool.feasibility.fail(np.array(told.row))
        pool.counted = len(self._told)
        return worth + np.log(pool.feasibility.chances)

    def _append(self, pool: _Pool, configurations: list[Configuration]) -> None:
        """Makes `configurations` the trials that the posterior has beyond its first ones."""
        same = 0
        while (
            same < min(len(pool.appended), len(configurations))
            and pool.appended[same] == configurations[same]
        ):
            same += 1
        if same < len(pool.appended):
            pool.posterior.truncate(same)
        for configuration in configurations[same:]:
            pool.posterior.append(np.array(self._encoder.row(configuration)))
        pool.appended = configurations

    def _forget_memo(self) -> None:
        self._pool = None
        self._start = None
        self._next = _FIRST_MODEL
        self._times = self._failures = default_kernel(self._encoder.axes)
        self._next_fit = 0
        self._fits = []

    def _advance(self) -> None:
        """Moves to the newest of the fixed counts at which a pool is due."""
        while self._next <= len(self._told):
            self._start = self._next
            if self._start >= self._next_fit:
                self._fits.append(self._start)
                self._next_fit = int(self._start * _REFIT_GROWTH) + 1
            self._next += min(_LONGEST_POOL, max(1, self._next // _REFRESH_SHARE))

    def _fit_kernels(self) -> None:
        """Fits are chains, each starts from the one before; those that are due are made now."""
        for count in self._fits:
            known = self._successes(count)
            if len(known) >= _LEAST_FITTED:
                fitness = np.array([fitness for _, fitness in known])
                rows = _rows(told for told, _ in known)
                self._times = self._fitted(self._times, rows, fitness, count)
            tried = self._tried(count)
            succeeded = _succeeded(tried)
            if 0 < succeeded.sum() < len(tried):
                self._failures = self._fitted(self._failures, _rows(tried), succeeded, count)
        self._fits = []

    def _fitted(self, start: Kernel, rows: Rows, values: Floats, count: int) -> Kernel:
        rng = np.random.default_rng([self._seed, count])
        return fit_kernel(start, self._encoder.axes, rows, values, rng)

    def _successes(self, count: int) -> list[_Success]:
        return [
            (t, t.fitness) for t in self._told[:count] if t.fitness is not None and not t.dropped
        ]

    def _tried(self, count: int) -> list[_Told]:
        """What the model of failures is built on: the newest, failed or not."""
        return [t for t in self._told[:count] if not t.dropped][-_MODEL_ROWS:]

    def _make_pool(self, start: int) -> _Pool | None:
        known = self._successes(start)
        if not known:
            return None
        self._fit_kernels()
        rng = stream(self._seed, "pool", start)
        elites = [Elite(i, t.configuration, f) for i, (t, f) in enumerate(known)]
        elites.sort(key=lambda elite: -elite.fitness)
        told = {t.configuration for t in self._told[:start]}
        candidates = [c for c in dict.fromkeys(self._breed(elites, rng)) if c not in told]
        if not candidates:
            return None
        rows = np.array([self._encoder.row(c) for c in candidates], dtype=np.int64)
        used = _most_telling(known, _MODEL_ROWS)
        values = np.array([fitness for _, fitness in used])
        tried = self._tried(start)
        succeeded = _succeeded(tried)
        feasibility = None
        if not succeeded.all():
            feasibility = Feasibility(self._failures, _rows(tried), succeeded, rows)
        return _Pool(
            start,
            candidates,
            {c: i for i, c in enumerate(candidates)},
            Posterior(self._times, _rows(told for told, _ in used), values, rows),
            feasibility,
            best=float(values.max()),
            counted=start,
        )


def _most_telling(known: list[_Success], count: int) -> list[_Success]:
    """The best half, and the newest of the rest, in the order they were told."""
    if len(known) <= count:
        return known
    order = sorted(range(len(known)), key=lambda i: (-known[i][1], i))
    chosen = {*order[: count // 2], *sorted(order[count // 2 :])[-(count - count // 2) :]}
    return [known[i] for i in sorted(chosen)]


def _rows(told: Iterable[_Told]) -> Rows:
    return np.array([t.row for t in told], dtype=np.int64)


def _succeeded(tried: Iterable[_Told]) -> Floats:
    return np.array([float(t.fitness is not None) for t in tried])
