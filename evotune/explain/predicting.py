"""Predicts the worth of changes of a champion: the search's model with figures of launches.

The model is a Gaussian process over the run's valid trials. If the space's files were read, its
covariance also has a linear part in figures of each configuration's launches (`LaunchFigures`),
which are known without compiling and say how well a configuration fits the device. From a hundred
trials on they raise the rank correlation of single changes
(`benchmarks/lab/explain_predictions.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from evotune.explain.measured_pairs import TrialTable
from evotune.search.gaussian_process import Difference, TrialModel
from evotune.space.search_space import Parameter
from evotune.trial import Configuration, Trial, Value

_FIGURES: Final = ("threads", "blocks", "shared_bytes", "warps", "resident", "waves", "launches")
_LEAST_VALID: Final = 8
_LEAST_FOR_FIGURES: Final = 100

LaunchFigures = Mapping[str, float]
"""Figures of a configuration's first timed case, known without compiling:

- launches; of the largest launch its threads, blocks, shared_bytes and bytes_in_flight (shared
  bytes a thread);
- on a GPU resident (blocks a multiprocessor), warps, waves and idle (the share of the
  multiprocessors' time without a block), as far as threads and shared memory decide.
"""


def table_of(trials: Sequence[Trial], known: Sequence[Parameter] = ()) -> TrialTable:
    """The trials in the form that a `Predictor` takes. `known`: the space's parameters, if the
    space was read."""
    return TrialTable.of(trials, known)


class Predictor:
    """Predicts the worth of changes. `known`: returns the launch figures of a configuration; None
    if the space was not read."""

    def __init__(
        self, table: TrialTable, known: Callable[[Configuration], LaunchFigures] | None = None
    ) -> None:
        """Raises ValueError with fewer than eight valid trials, or nothing that varies."""
        if len(table.valid) < _LEAST_VALID or not table.parameters:
            raise ValueError(f"a prediction needs {_LEAST_VALID} valid trials")
        self._table = table
        self._known = known if len(table.valid) >= _LEAST_FOR_FIGURES else None
        configurations = [trial.configuration for trial in table.valid]
        figures = [self._figures(one) for one in configurations] if self._known else ()
        self.model = TrialModel(
            table.parameters,
            [table.varied(one) for one in configurations],
            table.fitness.tolist(),
            figures,
        )

    def _figures(self, configuration: Mapping[str, Value]) -> list[float]:
        found = self._known(Configuration(configuration)) if self._known is not None else {}
        idle = found.get("idle", 0.0)
        return [
            *(math.log1p(found.get(name, 0.0)) for name in _FIGURES),
            math.log1p(-min(idle, 0.9)),
        ]

    def changes(
        self, start: Mapping[str, Value], changed: Sequence[Mapping[str, Value]]
    ) -> list[Difference | None]:
        """ln of the time of `start` / the time of each changed configuration; None if a value is
        outside of everything known."""
        table = self._table
        usable = [one for one in changed if self.model.knows(table.varied(one))]
        figures = [self._figures(one) for one in (start, *usable)] if self._known else ()
        found = iter(
            self.model.changes(table.varied(start), [table.varied(one) for one in usable], figures)
        )
        return [next(found) if self.model.knows(table.varied(one)) else None for one in changed]

    def gains(
        self, start: Trial, changed: Sequence[Mapping[str, Value]]
    ) -> list[Difference | None]:
        """Like `changes`, for a `start` and changes that were selected as the best of many. The
        gain is relative to the measured fitness of `start` if that is greater than the model's, and
        the deviation includes that of one measurement."""
        own = start.configuration
        figures = self._figures(own) if self._known else ()
        expected = self.model.expected(self._table.varied(own), figures)
        fitness = start.outcome.fitness
        ahead = max(0.0, fitness - expected) if fitness is not None else 0.0
        return [
            Difference(found.mean - ahead, math.hypot(found.deviation, self.model.noise))
            if found is not None
            else None
            for found in self.changes(own, changed)
        ]
