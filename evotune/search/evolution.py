"""A steady-state genetic algorithm on DEAP, with elitist survival by generations."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final

from evotune.search.folded import FoldedStrategy
from evotune.search.population import Individual, create_toolbox
from evotune.search.strategy import SearchSettings
from evotune.search.streams import stream
from evotune.space.protocol import SearchSpace
from evotune.trial import Configuration, Json, Value

# Each proposal draws its kind by these chances. A share of a population would be rounded,
# for a small one down to nothing (Helion #3518).
_IMMIGRANT_CHANCE: Final = 0.05
_NEIGHBOUR_CHANCE: Final = 0.3
_MATE_CHANCE: Final = 0.6
_MUTATE_MATED_CHANCE: Final = 0.2
_BREEDING_ATTEMPTS: Final = 8


class Evolution(FoldedStrategy):
    """Parents are the survivors of the last generation and the successes since then.

    So a good child breeds as soon as it is told; at a generation's end the best survive
    (mu + lambda: an elite never gets lost). Failures never breed.
    """

    name: ClassVar[str] = "evolution"

    def __init__(self, space: SearchSpace, settings: SearchSettings) -> None:
        super().__init__(space, settings)
        self._toolbox = create_toolbox(space)
        self._survivors = max(settings.elites, settings.population // 4)
        self._parents: list[Individual] = []

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        taken = frozenset(pending)
        if number == 0 and self._unseen.is_free(self._space.default(), taken):
            return self._space.default()
        rng = stream(self._settings.seed, "propose", number)
        proposal = None
        if self._has_founders(number):
            proposal = self._exploit(taken, rng)
        return self._unseen.sample(rng, taken) if proposal is None else proposal

    def _has_founders(self, number: int) -> bool:
        """Whether samples gave way to breeding: half a generation was drawn, half of that told.

        Small budgets gain by breeding before the first generation is complete.
        """
        population = self._settings.population
        enough = number >= population // 2 and self._told >= population // 4
        return enough and len(self._parents) > 0

    def _exploit(
        self, taken: Collection[Configuration], rng: random.Random
    ) -> Configuration | None:
        """A child, an elite's neighbour when there is none, or None for an immigrant."""
        draw = rng.random()
        if draw < _IMMIGRANT_CHANCE:
            return None
        if draw >= _IMMIGRANT_CHANCE + _NEIGHBOUR_CHANCE:
            child = self._child(taken, rng)
            if child is not None:
                return child
        return self._neighbour(taken, rng)

    def _child(self, taken: Collection[Configuration], rng: random.Random) -> Configuration | None:
        """A free child of tournament winners, mutated until it is one nobody proposed."""
        child = self._toolbox.select(self._parents, rng).elite.configuration
        if rng.random() < _MATE_CHANCE:
            other = self._toolbox.select(self._parents, rng).elite.configuration
            child = self._repaired(self._toolbox.mate(child, other, rng), child, rng)
            if self._unseen.is_free(child, taken) and rng.random() >= _MUTATE_MATED_CHANCE:
                return child
        for _ in range(_BREEDING_ATTEMPTS):
            child = self._repaired(self._toolbox.mutate(child, rng), child, rng)
            if self._unseen.is_free(child, taken):
                return child
        return None

    def _repaired(
        self, values: Mapping[str, Value], otherwise: Configuration, rng: random.Random
    ) -> Configuration:
        repaired = self._space.repair(values, rng)
        return otherwise if repaired is None else repaired

    def _neighbour(
        self, taken: Collection[Configuration], rng: random.Random
    ) -> Configuration | None:
        """A free neighbour of the best elite that still has one, any of its neighbours."""
        for elite in self.elites:
            free = [
                neighbour
                for neighbour in self._neighbours(elite.configuration)
                if self._unseen.is_free(neighbour, taken)
            ]
            if free:
                return rng.choice(free)
        return None

    def _learn(self, individual: Individual | None) -> None:
        if individual is not None:
            self._parents.append(individual)

    def _forget(self, configuration: Configuration) -> None:
        self._parents = [p for p in self._parents if p.elite.configuration != configuration]

    def _end_generation(self) -> None:
        self._parents = self._toolbox.survive(self._parents, self._survivors)

    def _snapshot_learnt(self) -> Json:
        return [parent.to_json() for parent in self._parents]

    def _restore_learnt(self, learnt: Json) -> None:
        self._parents = [Individual.from_json(data, self._names) for data in learnt]
