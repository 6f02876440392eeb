"""Strategies by name."""

from __future__ import annotations

from typing import Final

from evotune.errors import UsageError
from evotune.search.strategy import SearchSettings, Strategy
from evotune.space.protocol import SearchSpace

STRATEGY_NAMES: Final = ("evolution", "exhaustive", "local", "nsga2", "random")


def create_strategy(name: str, space: SearchSpace, settings: SearchSettings) -> Strategy:
    """A new strategy that was told nothing; UsageError when the name is not one of them."""
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
            raise UsageError(
                f"unknown search strategy {name!r}; there are {', '.join(STRATEGY_NAMES)}"
            )
