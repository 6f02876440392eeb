"""A strategy of an installed package: the default, then all neighbours of each told trial."""

from __future__ import annotations

from collections.abc import Sequence

from evotune import Configuration, Trial
from evotune.run_options import SearchSettings
from evotune.space.search_space import SearchSpace


class Flood:
    def __init__(self, space: SearchSpace, settings: SearchSettings) -> None:
        self._space = space
        self._waiting = [space.default()]
        self._known = set(self._waiting)

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        return self._waiting.pop(0) if self._waiting else None

    def tell(self, trial: Trial) -> None:
        near = [c for c in self._space.neighbours(trial.configuration) if c not in self._known]
        self._waiting += near
        self._known.update(near)
