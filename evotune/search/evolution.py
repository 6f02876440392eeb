"""A steady-state genetic algorithm on DEAP whose offspring a surrogate filters.

The filter breeds a pool of candidates, and picks the most promising one. A pool and its model cost
tens of milliseconds. So they are made anew at fixed counts of told trials (those passed to `tell`),
and the steps between these counts grow. In between, each trial enters the model
(`gaussian_process.py`) as soon as it is told or pending. A pick depends only on the settings, the
told trials and the pending ones. The object caches results between calls only to save time.
"""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from evotune.run_options import SearchSettings
from evotune.search.folded import FoldedStrategy, Individual, SeenConfigurations, create_toolbox
from evotune.search.gaussian_process import (
    Encoder,
    Floats,
    Indices,
    Kernel,
    Posterior,
    Rows,
    Warp,
    default_kernel,
    fit_kernel,
    log_expected_improvement,
    worth_fitting,
)
from evotune.search.strategy import Elite, stream
from evotune.space.search_space import Parameter, SearchSpace
from evotune.trial import Configuration, Json, Trial

# The sources of a pool. All are counts, since a share could be rounded down to nothing (Helion
# #3518).
_PARENTS: Final = 16
_NEIGHBOURHOODS: Final = 8  # elites whose neighbours are all candidates
_SECOND_NEIGHBOURHOODS: Final = 12  # neighbours of elites whose neighbours are candidates too
_LARGEST_NEIGHBOURHOOD: Final = 64
_CHILDREN: Final = 96
_REPAIRS: Final = 8  # invalid children that are repaired, which can cost milliseconds each
_IMMIGRANTS: Final = 200
_MATE_CHANCE: Final = 0.6
_BLIND: Final = 8  # without a model: draws; the one least similar to the pending ones is proposed


class Evolution(FoldedStrategy):
    """The default strategy. It breeds far more offspring than can be tried, and proposes those that
    a model of times and failures (`Guide`) finds most promising.

    Parents are the best trials told so far; failures never breed. The first proposals are the
    default and uniform samples. Proposals that are in flight together are spread out, because none
    of them sees the others' outcomes.
    """

    name: ClassVar[str] = "evolution"
    version: ClassVar[int] = 6

    def __init__(self, space: SearchSpace, settings: SearchSettings) -> None:
        super().__init__(space, settings)
        self._toolbox = create_toolbox(space)
        self._guide = Guide(
            space.parameters,
            settings.seed,
            self._seen,
            self._breed,
            parents=_PARENTS,
            lookahead=settings.lookahead,
        )

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        taken = frozenset(pending)
        if number == 0 and self._unseen.is_free(self._space.default(), taken):
            return self._space.default()
        picked = self._guide.pick(pending)
        if picked is not None and self._unseen.is_free(picked, taken):
            return picked
        rng = stream(self._settings.seed, "propose", number)
        samples = [self._unseen.sample(rng, taken) for _ in range(_BLIND if pending else 1)]
        return self._guide.least_alike([s for s in samples if s is not None], pending)

    def _breed(self, elites: Sequence[Elite], rng: random.Random) -> list[Configuration]:
        """Candidates: neighbours of the best, children of tournaments, and immigrants."""
        pool: list[Configuration] = []
        for elite in elites[:_NEIGHBOURHOODS]:
            pool += self._some_neighbours(elite.configuration, rng)
        for i in range(_SECOND_NEIGHBOURHOODS):
            near = self._neighbours(elites[i % min(3, len(elites))].configuration)
            if near:
                pool += self._some_neighbours(rng.choice(near), rng)
        pool += self._children([Individual(elite) for elite in elites], rng)
        pool += [self._space.sample(rng) for _ in range(_IMMIGRANTS)]
        return pool

    def _some_neighbours(
        self, configuration: Configuration, rng: random.Random
    ) -> Sequence[Configuration]:
        near = self._neighbours(configuration)
        if len(near) <= _LARGEST_NEIGHBOURHOOD:
            return near
        return rng.sample(near, _LARGEST_NEIGHBOURHOOD)

    def _children(self, parents: Collection[Individual], rng: random.Random) -> list[Configuration]:
        children: list[Configuration] = []
        repairs = _REPAIRS
        chosen = [p.elite.configuration for p in self._toolbox.select(parents, 2 * _CHILDREN, rng)]
        for child, other in zip(chosen[::2], chosen[1::2], strict=True):
            if rng.random() < _MATE_CHANCE:
                values = self._toolbox.mate(child, other, rng)
            else:
                values = self._toolbox.mutate(child, rng)
            if self._space.is_valid(values):
                children.append(Configuration(values))
            elif repairs:
                repairs -= 1
                repaired = self._space.repair(values, rng)
                if repaired is not None:
                    children.append(repaired)
        return children

    def _learn(self, trial: Trial, individual: Individual | None) -> None:
        self._guide.learn(trial.configuration, trial.outcome.fitness)

    def _pass_over(self, trial: Trial) -> None:
        self._guide.learn(trial.configuration, None)
        self._guide.drop(trial.configuration)  # the model of failures must not see it

    def _forget(self, configuration: Configuration) -> None:
        self._guide.drop(configuration)

    def _snapshot_learnt(self) -> Json:
        return self._guide.snapshot()

    def _restore_learnt(self, learnt: Json) -> None:
        self._guide.restore(learnt)
        if self._guide.told != self._told:
            raise ValueError(f"{self._guide.told} trials were learnt of {self._told}")


# A model of the probability that a configuration fails.
_LEAST_DEVIATION: Final = 0.1  # of a predicted share of successes, which is never certain
_LEAST_CHANCE: Final = 1e-6


class Feasibility:
    """The chance of success of every candidate of a pool.

    It is a separate Gaussian process on 1 for a success and 0 for a failure. Its kernel is fitted
    separately, because failures depend on other parameters than times do, and on few of them. So
    the model of times never treats a failure as a slow configuration.
    """

    def __init__(self, kernel: Kernel, rows: Rows, succeeded: Floats, pool: Rows) -> None:
        self._kernel = kernel
        self._pool = pool
        posterior = Posterior(kernel, rows, succeeded, pool)
        deviations = np.maximum(posterior.deviations(), _LEAST_DEVIATION)
        z = (posterior.means([]) - 0.5) / deviations
        chances = np.fromiter((0.5 * math.erfc(-x / math.sqrt(2)) for x in z), float, len(z))
        self.chances: Floats = np.maximum(chances, _LEAST_CHANCE)

    def fail(self, row: Rows) -> None:
        """Adds a failure: the more similar a candidate, the more its chance of success falls."""
        alike = self._kernel.between(row[None, :], self._pool)[0]
        self.chances = np.maximum(self.chances * (1 - alike), _LEAST_CHANCE)


_FIRST_MODEL: Final = 3  # trials told before the first model
_LEAST_FITTED: Final = 3  # successes before the model of times is fitted
# A pool serves told / 24 more trials, or lookahead / 16 if that is greater: each trial in flight
# must enter a new pool before the first pick. No pool serves more than 64 trials.
_REFRESH_SHARE: Final = 24
_IN_FLIGHT_SHARE: Final = 16
_LONGEST_POOL: Final = 64
_REFIT_GROWTH: Final = 1.4
_MODEL_ROWS: Final = 448  # the most trials that a model is built on

_THREADS: Final = ThreadpoolController()

Breed: TypeAlias = Callable[[Sequence[Elite], random.Random], list[Configuration]]


@dataclass(slots=True)
class _Pool:
    """The candidates of one pool, with the models' predictions for them."""

    start: int  # the number of trials told when the pool was due
    candidates: list[Configuration]
    index: dict[Configuration, int]
    warp: Warp
    posterior: Posterior
    feasibility: Feasibility | None  # None while nothing failed
    best: float
    counted: int  # `feasibility` knows the failures among this many trials
    appended: list[Configuration] = field(default_factory=list)


class Guide:
    """Learns every trial, and picks the next candidate. `breed` makes candidates from the best
    `parents` successes, best first. A trial must be in `seen` before it is learnt."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        seed: int,
        seen: SeenConfigurations,
        breed: Breed,
        *,
        parents: int,
        lookahead: int,
    ) -> None:
        self._encoder = Encoder(parameters)
        self._seed = seed
        self._seen = seen
        self._breed = breed
        self._parents = parents
        self._least_pool = max(1, lookahead // _IN_FLIGHT_SHARE)
        self._told = ToldTrials(self._encoder)
        self._pool: _Pool | None = None
        self._start: int | None = None  # the current pool's `start`
        self._times: Kernel = default_kernel(self._encoder.axes)
        self._failures = self._times
        self._fits: list[int] = []  # counts of told trials at which a fit is due
        self._forget_memo()

    def learn(self, configuration: Configuration, fitness: float | None) -> None:
        self._told.add(configuration, fitness)

    def drop(self, configuration: Configuration) -> None:
        """Forgets the configuration's earlier outcomes."""
        self._told.drop(configuration)
        self._forget_memo()

    @property
    def told(self) -> int:
        return len(self._told)

    def snapshot(self) -> Json:
        """The learnt state as JSON-able data. It includes the fitted kernels, because fitting them
        again would take longer than everything else."""
        self._advance()
        with _one_thread():
            self._fit_kernels()
        kernels = [self._times.to_json(), self._failures.to_json()]
        trials = self._told.snapshot()
        return {"trials": trials, "kernels": kernels, "warped": self._is_warped}

    def restore(self, snapshot: Json) -> None:
        """Restores a snapshot. Raises ValueError, TypeError or KeyError for other JSON."""
        self._told.restore(snapshot["trials"])
        self._forget_memo()
        self._advance()
        self._fits = []
        self._times, self._failures = (
            Kernel.from_json(kernel, self._encoder.axes) for kernel in snapshot["kernels"]
        )
        self._is_warped = bool(snapshot["warped"])

    def pick(self, pending: Sequence[Configuration]) -> Configuration | None:
        """The most promising candidate that is neither told nor pending; None if there is no model
        yet, or the pool is used up."""
        with _one_thread():
            return self._pick(pending)

    def _pick(self, pending: Sequence[Configuration]) -> Configuration | None:
        self._advance()
        start = self._start
        if start is None:
            return None
        if self._pool is None or self._pool.start != start:
            self._pool = self._make_pool(start)
        pool = self._pool
        if pool is None:
            return None
        since = range(start, len(self._told))
        self._append(pool, [self._told.configuration(n) for n in since] + list(pending))
        fitness = [self._told.fitness(n) for n in since]
        values = [None if f is None else pool.warp(f) for f in fitness] + [None] * len(pending)
        worth = self._worth(pool, values)
        for configuration in pool.appended:
            place = pool.index.get(configuration)
            if place is not None:
                worth[place] = -np.inf
        chosen = int(np.argmax(worth))
        return pool.candidates[chosen] if np.isfinite(worth[chosen]) else None

    def least_alike(
        self, configurations: Sequence[Configuration], pending: Sequence[Configuration]
    ) -> Configuration | None:
        """The one of `configurations` that is farthest from its nearest pending configuration, by
        the default kernel, which is not fitted to outcomes. The first one in a tie; None if there
        are none."""
        if not configurations or not pending:
            return next(iter(configurations), None)
        rows, others = (
            self._encoder.rows([self._encoder.indices(c) for c in group])
            for group in (configurations, pending)
        )
        likest = default_kernel(self._encoder.axes).between(rows, others).max(axis=1)
        return configurations[int(np.argmin(likest))]

    def _worth(self, pool: _Pool, values: list[float | None]) -> Floats:
        """For each candidate, ln of (expected improvement x chance of success)."""
        best = max([pool.best, *(v for v in values if v is not None)])
        means = pool.posterior.means(values)
        worth = log_expected_improvement(means, pool.posterior.deviations(), best)
        if pool.feasibility is None:
            return worth
        for number in range(pool.counted, len(self._told)):
            if self._told.failed(number):
                pool.feasibility.fail(self._encoder.row(self._told.configuration(number)))
        pool.counted = len(self._told)
        return worth + np.log(pool.feasibility.chances)

    def _append(self, pool: _Pool, configurations: list[Configuration]) -> None:
        """Makes `configurations` the posterior's appended trials, and reuses those that it has
        already."""
        same = 0
        while same < min(len(pool.appended), len(configurations)) and _are_same(
            pool.appended[same], configurations[same]
        ):
            same += 1
        if same < len(pool.appended):
            pool.posterior.truncate(same)
        fresh = [self._encoder.indices(configuration) for configuration in configurations[same:]]
        if fresh:
            pool.posterior.extend(self._encoder.rows(fresh))
        pool.appended = configurations

    def _forget_memo(self) -> None:
        self._pool = None
        self._start = None
        self._next = _FIRST_MODEL
        self._times = self._failures = default_kernel(self._encoder.axes)
        self._is_warped = False  # whether the model of times sees warped fitness
        self._next_fit = 0
        self._fits = []

    def _advance(self) -> None:
        """Advances to the latest of the fixed numbers of outcomes at which a pool is due."""
        while self._next <= len(self._told):
            self._start = self._next
            if self._start >= self._next_fit:
                self._fits.append(self._start)
                self._next_fit = int(self._start * _REFIT_GROWTH) + 1
            lifetime = max(self._least_pool, self._next // _REFRESH_SHARE)
            self._next += min(_LONGEST_POOL, lifetime)

    def _fit_kernels(self) -> None:
        """Makes the fits that are due. Each fit starts from the kernel of the fit before."""
        for count in self._fits:
            known, fitness = self._told.successes(count)
            if len(known) >= _LEAST_FITTED:
                self._fit_times(known, fitness, count)
            tried, succeeded = self._told.newest(count, _MODEL_ROWS)
            if 0 < succeeded.sum() < len(tried):
                found = self._fitted(self._failures, tried, succeeded, count, Warp())
                self._failures, _ = found
        self._fits = []

    def _fit_times(self, known: Numbers, fitness: Floats, count: int) -> None:
        """Fits to the plain and to the warped fitness, and keeps the likelier kernel."""
        plain, likely = self._fitted(self._times, known, fitness, count, Warp())
        warp = Warp.of_the_slower_half(fitness)
        warped, likely_warped = self._fitted(self._times, known, fitness, count, warp)
        self._is_warped = likely_warped > likely
        self._times = warped if self._is_warped else plain

    def _fitted(
        self, start: Kernel, trials: Numbers, values: Floats, count: int, warp: Warp
    ) -> tuple[Kernel, float]:
        rng = np.random.default_rng([abs(self._seed), count])  # NumPy takes no negative seed
        chosen = worth_fitting(values, rng)
        rows, values = self._told.rows(trials[chosen]), values[chosen]
        kernel, likely = fit_kernel(start, self._encoder.axes, rows, warp.all(values), rng)
        return kernel, likely + warp.log_slope(values)

    def _make_pool(self, start: int) -> _Pool | None:
        known, fitness = self._told.successes(start)
        if not len(known):
            return None
        self._fit_kernels()
        rng = stream(self._seed, "pool", start)
        bred = dict.fromkeys(self._breed(self._elites(known, fitness), rng))
        candidates = [c for c in bred if not self._was_told(c, start)]
        if not candidates:
            return None
        rows = self._encoder.rows([self._encoder.indices(c) for c in candidates])
        used = _most_telling(fitness, _MODEL_ROWS)
        # The model of failures uses the newest trials, failed or not.
        tried, succeeded = self._told.newest(start, _MODEL_ROWS)
        feasibility = None
        if not succeeded.all():
            feasibility = Feasibility(self._failures, self._told.rows(tried), succeeded, rows)
        warp = Warp.of_the_slower_half(fitness) if self._is_warped else Warp()
        shown = warp.all(fitness[used])
        return _Pool(
            start,
            candidates,
            {c: i for i, c in enumerate(candidates)},
            warp,
            Posterior(self._times, self._told.rows(known[used]), shown, rows),
            feasibility,
            best=float(fitness.max()),
            counted=start,
        )

    def _elites(self, known: Numbers, fitness: Floats) -> list[Elite]:
        return [
            Elite(int(i), self._told.configuration(int(known[i])), float(fitness[i]))
            for i in _best(fitness, self._parents)
        ]

    def _was_told(self, configuration: Configuration, before: int) -> bool:
        """Whether one of the first `before` trials had the configuration; later trials must not
        matter."""
        if configuration not in self._seen:
            return False
        since = range(before, len(self._told))
        if any(self._told.configuration(number) == configuration for number in since):
            return self._told.has(configuration, before)
        return True


def _one_thread() -> AbstractContextManager[object]:
    """Limits linear algebra to one BLAS thread. Several threads spin while they wait, which makes
    them several times slower while compilers use every core. With one thread, the order of
    summation is also the same on every machine."""
    context: AbstractContextManager[object] = _THREADS.limit(limits=1, user_api="blas")
    return context


def _are_same(one: Configuration, other: Configuration) -> bool:
    return one is other or one == other


def _best(fitness: Floats, count: int) -> Numbers:
    """The indices of the greatest values, best first; among equals the earlier first."""
    at_least = np.arange(len(fitness))
    if len(fitness) > count:
        at_least = np.flatnonzero(fitness >= np.partition(fitness, -count)[-count])
    best: Numbers = at_least[np.argsort(-fitness[at_least], kind="stable")][:count]
    return best


def _most_telling(fitness: Floats, count: int) -> Numbers:
    """The indices of `count` trials in the order of telling: half of them are the best ones, half
    the newest of the others."""
    if len(fitness) <= count:
        return np.arange(len(fitness))
    chosen = np.zeros(len(fitness), dtype=np.bool_)
    chosen[_best(fitness, count // 2)] = True
    chosen[np.flatnonzero(~chosen)[-(count - count // 2) :]] = True
    return np.flatnonzero(chosen)


Numbers: TypeAlias = NDArray[np.intp]

_ROOM: Final = 256  # trials before the columns grow first
_KEPT: Final = 128  # newest configurations that are kept as objects


class ToldTrials:
    """The told trials, numbered in the order in which `tell` received them.

    A configuration is stored as the indices of its values, and rebuilt on request. A trial counts
    unless its configuration was dropped later because it was measured again.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._set(encoder.no_indices(), np.empty(0))

    def _set(self, indices: Indices, fitness: Floats) -> None:
        count = self._count = len(fitness)
        self._indices = np.concatenate(
            [indices, np.zeros_like(indices, shape=(_ROOM, indices.shape[1]))]
        )
        self._fitness = np.concatenate([fitness, np.zeros(_ROOM)])  # NaN: failed
        self._dropped = np.zeros(count + _ROOM, dtype=np.bool_)
        self._recent: dict[int, Configuration] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, configuration: Configuration, fitness: float | None) -> None:
        number = self._count
        if number == len(self._fitness):
            self._indices = np.concatenate([self._indices, np.zeros_like(self._indices)])
            self._fitness = np.concatenate([self._fitness, np.zeros_like(self._fitness)])
            self._dropped = np.concatenate([self._dropped, np.zeros_like(self._dropped)])
        self._indices[number] = self._encoder.indices(configuration)
        self._fitness[number] = np.nan if fitness is None else fitness
        self._keep(number, configuration)
        self._count += 1

    def _keep(self, number: int, configuration: Configuration) -> None:
        self._recent[number] = configuration
        self._recent.pop(number - _KEPT, None)

    def drop(self, configuration: Configuration) -> None:
        """Forgets the configuration's trials so far: they no longer count."""
        self._dropped[: self._count] |= self._are(configuration, self._count)

    def _are(self, configuration: Configuration, before: int) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = (
            self._indices[:before] == self._encoder.indices(configuration)
        ).all(axis=1)
        return same

    def has(self, configuration: Configuration, before: int) -> bool:
        """Whether a trial with a number below `before` had the configuration. Reads all of these
        trials."""
        return bool(self._are(configuration, before).any())

    def configuration(self, number: int) -> Configuration:
        found = self._recent.get(number)
        if found is None:
            found = self._encoder.configuration(self._indices[number].tolist())
            if number >= self._count - _KEPT:
                self._recent[number] = found
        return found

    def fitness(self, number: int) -> float | None:
        """The trial's fitness; None if it failed or does not count."""
        found = float(self._fitness[number])
        return None if self._dropped[number] or np.isnan(found) else found

    def failed(self, number: int) -> bool:
        """Whether the trial failed; False if it does not count."""
        return bool(np.isnan(self._fitness[number]) and not self._dropped[number])

    def successes(self, before: int) -> tuple[Numbers, Floats]:
        """The numbers, in order, and the fitness of the trials below `before` that succeeded and
        count."""
        fitness = self._fitness[:before]
        numbers = np.flatnonzero(~(np.isnan(fitness) | self._dropped[:before]))
        return numbers, fitness[numbers]

    def newest(self, before: int, count: int) -> tuple[Numbers, Floats]:
        """The numbers of the last `count` trials below `before` that count, in order, and for each
        1.0 for a success, 0.0 for a failure."""
        numbers = np.flatnonzero(~self._dropped[:before])[-count:]
        return numbers, (~np.isnan(self._fitness[numbers])).astype(np.float64)

    def rows(self, numbers: Numbers) -> Rows:
        return self._encoder.rows(self._indices[numbers])

    def snapshot(self) -> dict[str, Json]:
        count = self._count
        return {
            "indices": _text(self._indices[:count]),
            "fitness": _text(self._fitness[:count].astype("<f8", copy=False)),
            "dropped": np.flatnonzero(self._dropped[:count]).tolist(),
        }

    def restore(self, snapshot: Json) -> None:
        """Restores a snapshot. Raises ValueError, TypeError or KeyError for other JSON."""
        fitness = np.frombuffer(base64.b64decode(snapshot["fitness"], validate=True), "<f8")
        indices = self._encoder.no_indices()
        found = np.frombuffer(base64.b64decode(snapshot["indices"], validate=True), indices.dtype)
        indices = found.reshape(len(fitness), indices.shape[1])
        dropped = np.array(snapshot["dropped"], dtype=np.intp)
        if np.isinf(fitness).any() or not self._encoder.are_valid(indices):
            raise ValueError("a trial that cannot have been told")
        if not ((dropped >= 0) & (dropped < len(fitness))).all():
            raise ValueError("a trial was dropped that was never told")
        self._set(indices, fitness.astype(np.float64))
        self._dropped[dropped] = True


def _text(column: NDArray[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(column).tobytes()).decode()
