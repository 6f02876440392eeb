"""Strategies by name: evotune's own, and those of installed packages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, cast

from evotune.errors import UsageError
from evotune.objectives import values
from evotune.plugins import STRATEGIES
from evotune.run_options import SearchSettings
from evotune.search._population import Compromise, Individual, create_toolbox
from evotune.search.folded import FoldedStrategy
from evotune.search.strategy import Strategy, stream
from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration, Json, Trial

if TYPE_CHECKING:
    from evotune.search.own import StrategyMaker


STRATEGY_NAMES: Final = ("evolution", "exhaustive", "local", "nsga2", "random")
"""The strategies that evotune brings."""


def strategy_names() -> tuple[str, ...]:
    """The names of evotune's own strategies, then of those of installed packages."""
    return (*STRATEGY_NAMES, *STRATEGIES.names())


def strategy_name(strategy: str | StrategyMaker) -> str:
    """The name that a run's settings keep; `module:Class` for a user's own strategy."""
    if isinstance(strategy, str):
        return strategy
    from evotune.search.own import maker_name

    return maker_name(strategy)


def same_strategy(name: str, given: str | StrategyMaker | None) -> str | StrategyMaker:
    """The strategy that continues a search by `name`. UsageError when that is a user's own strategy
    and was not given, or when another one is given."""
    if given is not None and strategy_name(given) != name:
        raise UsageError(
            f"the run's strategy is {name}, not {strategy_name(given)}: a run keeps its strategy"
        )
    if given is None and ":" in name:
        raise UsageError(
            f"the run's strategy is {name}, which is your own: resume from Python, with "
            f"evotune.open_run(...).resume(strategy={name.rpartition(':')[2]})"
        )
    return name if given is None else given


def create_strategy(
    name: str | StrategyMaker, space: SearchSpace, settings: SearchSettings
) -> Strategy:
    """A new strategy that was told nothing, by its name or made by a user's class. UsageError for
    an unknown name. EnvironmentProblem when the strategy is an installed package's and cannot be
    loaded."""
    # Imported on demand, so that listing names or checking settings does not import DEAP.
    match name:
        case "evolution":
            from evotune.search.evolution import Evolution

            return Evolution(space, settings)
        case "exhaustive":
            return ExhaustiveSearch(space, settings)
        case "local":
            return LocalSearch(space, settings)
        case "nsga2":
            return Nsga2(space, settings)
        case "random":
            return RandomSearch(space, settings)
        case _:
            from evotune.search.own import OwnStrategy

            maker = _of_a_package(name) if isinstance(name, str) else name
            return OwnStrategy(space, settings, maker)


def _of_a_package(name: str) -> StrategyMaker:
    """The strategy `name` of an installed package. UsageError when no package has it,
    EnvironmentProblem when it cannot be loaded."""
    found = STRATEGIES.load(name)
    if found is None:
        raise UsageError(
            f"unknown search strategy {name!r}; there are {', '.join(strategy_names())}"
        )
    return cast("StrategyMaker", found)


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
