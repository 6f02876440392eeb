"""A strategy of an installed package: the default, then all neighbours of each proposal."""

from __future__ import annotations

from collections.abc import Sequence

from evotune import Configuration, Trial
from evotune.run_options import SearchSettings
from evotune.space.search_space import SearchSpace


class Flood:
    def __init__(self, space: SearchSpace, settings: SearchSettings) -> None:
        self._space = space
        self._told: list[Configuration] = []

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        proposed = dict.fromkeys([*self._told, *pending])
        near = (c for each in proposed for c in self._space.neighbours(each))
        return next((c for c in (self._space.default(), *near) if c not in proposed), None)

    def tell(self, trial: Trial) -> None:
        self._told.append(trial.configuration)
