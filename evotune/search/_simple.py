"""Three simple strategies: exhaustive, random and greedy local search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evotune.run_options import SearchSettings
from evotune.search._population import Individual
from evotune.search.folded import FoldedStrategy
from evotune.search.strategy import stream
from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration, Json, Trial


class RandomSearch(FoldedStrategy):
    """Uniform, without replacement: every other strategy is compared with it.

    Draws until a configuration is new. The last fraction of a percent of a space follows in the
    space's order.
    """

    name: ClassVar[str] = "random"

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        rng = stream(self._settings.seed, "sample", number)
        return self._unseen.sample(rng, frozenset(pending))


class ExhaustiveSearch(FoldedStrategy):
    """Every configuration once, in the space's order. Lists the space only as far as needed."""

    name: ClassVar[str] = "exhaustive"

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        return self._unseen.first(frozenset(pending))


class LocalSearch(FoldedStrategy):
    """Tries the neighbours of the incumbent, nearest values first, and moves to the first better
    one; at an optimum it restarts at random.

    While all neighbours are told or pending, random configurations fill the look-ahead. One of them
    becomes the incumbent if it is better, or if there is none. An incumbent whose neighbours were
    all told is a local optimum, and the search leaves it.
    """

    name: ClassVar[str] = "local"

    def __init__(self, space: SearchSpace, settings: SearchSettings) -> None:
        super().__init__(space, settings)
        self._incumbent: Individual | None = None

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        taken = frozenset(pending)
        if self._incumbent is not None:
            for neighbour in self._neighbours(self._incumbent.elite.configuration):
                if self._unseen.is_free(neighbour, taken):
                    return neighbour
        return self._unseen.sample(stream(self._settings.seed, "start", number), taken)

    def _learn(self, trial: Trial, individual: Individual | None) -> None:
        incumbent = self._incumbent
        if individual is not None and (incumbent is None or individual.fitness > incumbent.fitness):
            self._incumbent = individual
        if self._incumbent is not None and self._is_optimum(self._incumbent):
            self._incumbent = None

    def _is_optimum(self, individual: Individual) -> bool:
        neighbours = self._neighbours(individual.elite.configuration)
        return all(neighbour in self._seen for neighbour in neighbours)

    def _forget(self, configuration: Configuration) -> None:
        if self._incumbent is not None and self._incumbent.elite.configuration == configuration:
            self._incumbent = None

    def _snapshot_learnt(self) -> Json:
        return None if self._incumbent is None else self._incumbent.to_json()

    def _restore_learnt(self, learnt: Json) -> None:
        self._incumbent = None if learnt is None else Individual.from_json(learnt, self._names)
