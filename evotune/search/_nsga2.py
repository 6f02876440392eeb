"""Search for several objectives at once: NSGA-II (Deb et al., 2002), one child at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from evotune.objectives import values
from evotune.run_options import SearchSettings
from evotune.search._population import Compromise, Individual, create_toolbox
from evotune.search.folded import FoldedStrategy
from evotune.search.strategy import stream
from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration, Json, Trial

_LEAST_PARENTS: Final = 4  # DEAP's tournament takes them by fours
_ATTEMPTS: Final = 32  # children that are invalid or known before a sample is drawn instead


class Nsga2(FoldedStrategy):
    """Keeps the `population` least dominated and least crowded trials, and breeds from them.

    It is a steady-state search: a trial enters as soon as it is told, and the last of the ranking
    leaves. `best` and `elites` go by fitness, that is, by the speedup alone.
    """

    name: ClassVar[str] = "nsga2"

    def __init__(self, space: SearchSpace, settings: SearchSettings) -> None:
        super().__init__(space, settings)
        self._toolbox = create_toolbox(space)
        self._population: list[Compromise] = []

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        taken = frozenset(pending)
        if number == 0 and self._unseen.is_free(self._space.default(), taken):
            return self._space.default()
        rng = stream(self._settings.seed, "propose", number)
        # The first generation is sampled, as in any genetic algorithm.
        if number >= self._settings.population and len(self._population) > _LEAST_PARENTS:
            ranked = self._toolbox.rank(self._population, len(self._population))
            for _ in range(_ATTEMPTS):
                first, second, *_ = self._toolbox.pair(ranked, _LEAST_PARENTS, rng)
                mated = self._toolbox.mate(first.configuration, second.configuration, rng)
                child = self._toolbox.mutate(Configuration(mated), rng)
                repaired = self._space.repair(child, rng)
                if repaired is not None and self._unseen.is_free(repaired, taken):
                    return repaired
        return self._unseen.sample(rng, taken)

    def _learn(self, trial: Trial, individual: Individual | None) -> None:
        if individual is None:
            return
        figures = values(trial.outcome, self._settings.objectives)
        self._population.append(Compromise(trial.configuration, figures))
        if len(self._population) > self._settings.population:
            self._population = self._toolbox.rank(self._population, self._settings.population)

    def _forget(self, configuration: Configuration) -> None:
        self._population = [c for c in self._population if c.configuration != configuration]

    def _identity(self) -> dict[str, Json]:
        return {**super()._identity(), "objectives": list(self._settings.objectives)}

    def _snapshot_learnt(self) -> Json:
        return [[c.configuration.to_json(), list(c.fitness.values)] for c in self._population]

    def _restore_learnt(self, learnt: Json) -> None:
        self._population = [Compromise(Configuration(c), tuple(figures)) for c, figures in learnt]
