"""Finds strategies by name: evotune's own, those of installed packages, and those that users write.

A user's strategy is a class with `ask` and `tell`. `OwnStrategy` adds the rest of the protocol.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Protocol, TypeAlias, cast

from evotune.errors import StoreError, UsageError
from evotune.plugins import STRATEGIES
from evotune.run_options import SearchSettings
from evotune.search.folded import Compromise, FoldedStrategy, Individual, create_toolbox
from evotune.search.strategy import Strategy, stream
from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration, Json, Trial, Value, objective_values
from evotune.util.words import shorten

STRATEGY_NAMES: Final = ("evolution", "exhaustive", "local", "nsga2", "random")
"""The names of evotune's own strategies."""


def strategy_names() -> tuple[str, ...]:
    """The names of evotune's own strategies, then of those of installed packages."""
    return (*STRATEGY_NAMES, *STRATEGIES.names())


def strategy_name(strategy: str | StrategyMaker) -> str:
    """The strategy's name in a run's settings; `module:Class` for a user's own strategy."""
    if isinstance(strategy, str):
        return strategy

    return maker_name(strategy)


def same_strategy(name: str, given: str | StrategyMaker | None) -> str | StrategyMaker:
    """The strategy with which to continue a search by `name`. Raises UsageError if `name` is a
    user's own strategy and none was given, or if another one was given."""
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
    """A new strategy without outcomes, by its name or from a user's class. Raises UsageError for an
    unknown name. Raises EnvironmentProblem if the strategy is an installed package's and cannot be
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
            maker = _of_a_package(name) if isinstance(name, str) else name
            return OwnStrategy(space, settings, maker)


def _of_a_package(name: str) -> StrategyMaker:
    """The strategy `name` of an installed package. Raises UsageError if no package has it,
    EnvironmentProblem if it cannot be loaded."""
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

    It is a steady-state search: each told trial enters the population, and the last one in the
    ranking leaves. `best` and `elites` rank by fitness, which is the speedup.
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
        figures = objective_values(trial.outcome, self._settings.objectives)
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
    """Samples the space uniformly without replacement. Every other strategy is compared with it.

    Draws until a configuration is new. The last fraction of a percent of a space comes in the
    space's order.
    """

    name: ClassVar[str] = "random"

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        rng = stream(self._settings.seed, "sample", number)
        return self._unseen.sample(rng, frozenset(pending))


class ExhaustiveSearch(FoldedStrategy):
    """Proposes every configuration once, in the space's order. Enumerates the space only as far as
    needed."""

    name: ClassVar[str] = "exhaustive"

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        return self._unseen.first(frozenset(pending))


class LocalSearch(FoldedStrategy):
    """Tries the neighbours of the incumbent, nearest values first, and moves to the first better
    one; at an optimum it restarts at random.

    If the outcome of every neighbour is known or pending, random configurations fill the lookahead.
    One of them becomes the incumbent if it is better, or if there is none. An incumbent whose
    neighbours were all told is a local optimum, and the search leaves it.
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


class AskTell(Protocol):
    """A strategy of your own: `tune(strategy=Mine)` calls `Mine(space, settings)`.

    Its proposals must depend on nothing but the space, the settings (`settings.seed`) and the
    trials passed to `tell`: a resumed run makes a new object and passes all trials to it again.

    >>> import evotune
    >>> class Descent:
    ...     def __init__(self, space, settings):
    ...         self.waiting = [space.default()]
    ...         self.known = set(self.waiting)
    ...         self.space, self.best = space, None
    ...
    ...     def ask(self, number, pending):
    ...         return self.waiting.pop(0) if self.waiting else None
    ...
    ...     def tell(self, trial):
    ...         fitness = trial.outcome.fitness
    ...         if fitness is not None and (self.best is None or fitness > self.best):
    ...             self.best = fitness
    ...             near = self.space.neighbours(trial.configuration)
    ...             self.waiting += [c for c in near if c not in self.known]
    ...             self.known.update(near)
    """

    def ask(
        self, number: int, pending: Sequence[Configuration]
    ) -> Configuration | Mapping[str, Value] | None:
        """Returns proposal `number`: a configuration of the space that was not passed to `tell`
        before and is not in `pending`, the proposals whose outcomes are not known yet. None ends
        the search."""

    def tell(self, trial: Trial) -> None:
        """Learns the outcome of a trial. Trials come in the order of their numbers.
        `trial.outcome.fitness` is None for a failed trial; else higher is better. A configuration
        whose outcome is `undecided` was not measured, and may be proposed once more."""


StrategyMaker: TypeAlias = Callable[[SearchSpace, SearchSettings], AskTell]
"""A class with `ask` and `tell`, or a function that returns an object with both."""


def maker_name(maker: StrategyMaker) -> str:
    """The maker's name in a run's store, `module:qualified name`. Raises UsageError if `maker`
    cannot be called."""
    inner: object = maker
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(inner):
        raise UsageError(
            f"strategy: expected a name, a class with ask and tell, or a function of (space, "
            f"settings), found a {type(inner).__name__}"
        )
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{getattr(inner, '__module__', None) or '?'}:{name}"


class OwnStrategy(FoldedStrategy):
    """Makes a full strategy of a user's object with `ask` and `tell`, and checks its proposals."""

    name: ClassVar[str] = "own"

    def __init__(self, space: SearchSpace, settings: SearchSettings, maker: StrategyMaker) -> None:
        super().__init__(space, settings)
        self._title = maker_name(maker)
        self._own = maker(space, settings)
        missing = [name for name in ("ask", "tell") if not callable(getattr(self._own, name, None))]
        if missing:
            raise UsageError(f"the strategy {self._title} lacks {' and '.join(missing)}")

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        found = self._own.ask(number, pending)
        if found is None:
            return None
        what = f"the strategy {self._title} returned {shorten(str(found), 200)}"
        if not isinstance(found, Mapping) or set(found) != set(self._names):
            raise UsageError(f"{what}: expected a value for each of {', '.join(self._names)}")
        configuration = Configuration({name: found[name] for name in self._names})
        if not self._space.is_valid(configuration):
            raise UsageError(f"{what}, which is not a valid configuration of the space")
        if configuration in self._seen or configuration in pending:
            raise UsageError(
                f"{what}, which it has returned before: return each configuration once"
            )
        return configuration

    def _learn(self, trial: Trial, individual: Individual | None) -> None:
        self._own.tell(trial)

    def _pass_over(self, trial: Trial) -> None:
        self._own.tell(trial)

    def snapshot(self) -> Json:
        """Always None, because the user's object cannot save its state."""
        return None

    def restore(self, snapshot: Json) -> None:
        """Always raises StoreError, so that the run passes all trials to `tell` again."""
        raise StoreError(f"the strategy {self._title} has no snapshot")
