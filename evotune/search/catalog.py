"""Strategies by name: evotune's own, and those of installed packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from evotune.errors import UsageError
from evotune.plugins import STRATEGIES
from evotune.run_options import SearchSettings
from evotune.search.strategy import Strategy
from evotune.space.search_space import SearchSpace

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
            from evotune.search._simple import ExhaustiveSearch

            return ExhaustiveSearch(space, settings)
        case "local":
            from evotune.search._simple import LocalSearch

            return LocalSearch(space, settings)
        case "nsga2":
            from evotune.search._nsga2 import Nsga2

            return Nsga2(space, settings)
        case "random":
            from evotune.search._simple import RandomSearch

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
