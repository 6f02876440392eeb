"""A steady-state genetic algorithm on DEAP whose offspring a surrogate filters."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import ClassVar, Final

from evotune.run_options import SearchSettings
from evotune.search.folded import FoldedStrategy, Individual, create_toolbox
from evotune.search.guide import Guide
from evotune.search.strategy import Elite, stream
from evotune.space.search_space import SearchSpace
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
_BLIND: Final = 8  # without a model: draws of which the one least like the pending ones is proposed


class Evolution(FoldedStrategy):
    """Breeds far more offspring than can be tried. A model of times and failures (`guide.py`)
    chooses the most promising ones, which are tried.

    Parents are the best trials so far, each as soon as it is told; failures never breed. The
    first proposals are the default and uniform samples. Proposals in flight together are spread
    out, since none of them sees the outcomes of the others.
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
