"""Strategies by name: evotune's own, and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from evotune.errors import UsageError
from evotune.plugins import STRATEGIES
from evotune.search.strategy import SearchSettings, Strategy
from evotune.space.protocol import SearchSpace

STRATEGY_NAMES: Final = ("evolution", "exhaustive", "local", "nsga2", "random")
"""Evotune's own."""


def strategy_names() -> tuple[str, ...]:
    """All there are."""
    return (*STRATEGY_NAMES, *STRATEGIES.names())


def create_strategy(name: str, space: SearchSpace, settings: SearchSettings) -> Strategy:
    """A new strategy that was told nothing; UsageError when the name is not one of them.
    EnvironmentProblem when an installed package has it and cannot be loaded."""
    # Imported on demand: listing names or checking settings must not cost DEAP's import.
    match name:
        case "evolution":
            from evotune.search.evolution import Evolution

            return Evolution(space, settings)
        case "exhaustive":
            from evotune.search.exhaustive import ExhaustiveSearch

            return ExhaustiveSearch(space, settings)
        case "local":
            from evotune.search.local import LocalSearch

            return LocalSearch(space, settings)
        case "nsga2":
            from evotune.search.nsga2 import Nsga2

            return Nsga2(space, settings)
        case "random":
            from evotune.search.random_search import RandomSearch

            return RandomSearch(space, settings)
        case _:
            found = STRATEGIES.load(name)
            if found is None:
                known = ", ".join(strategy_names())
                raise UsageError(f"unknown search strategy {name!r}; there are {known}")
            return cast("Callable[[SearchSpace, SearchSettings], Strategy]", found)(space, settings)
