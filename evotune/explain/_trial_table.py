"""A run's trials as columns: parameters with their values, configurations as indices, fitness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evotune.space.parameters import Boolean, Categorical, OrderedParameter, Parameter
from evotune.trial import Trial, Value

_MOST_VALUES = 64  # of a domain; of a larger one only the values that were tried count


@dataclass(frozen=True, slots=True)
class TrialTable:
    """- `trials`: all of them; `valid`: those with a fitness.
    - `parameters`: those with several values, of the domain or tried.
    - `places`: valid trials x parameters, each value's index. `fitness`: of the valid trials.
    """

    trials: tuple[Trial, ...]
    valid: tuple[Trial, ...]
    parameters: tuple[Parameter, ...]
    places: NDArray[np.int64]
    fitness: NDArray[np.float64]

    @classmethod
    def of(cls, trials: Sequence[Trial], known: Sequence[Parameter] = ()) -> TrialTable:
        """`known`: the space's parameters; without them the values are those that were tried, and
        numbers are taken to be ordered."""
        valid = tuple(trial for trial in trials if trial.outcome.fitness is not None)
        parameters = tuple(p for p in _parameters(trials, known) if p.cardinality > 1)
        tables = [{_key(v): i for i, v in enumerate(p.values)} for p in parameters]
        places = np.array(
            [
                [
                    table[_key(trial.configuration[parameter.name])]
                    for table, parameter in zip(tables, parameters, strict=True)
                ]
                for trial in valid
            ],
            dtype=np.int64,
        ).reshape(len(valid), len(parameters))
        fitness = np.array([trial.outcome.fitness for trial in valid], dtype=np.float64)
        return cls(tuple(trials), valid, parameters, places, fitness)

    def parameter(self, name: str) -> Parameter:
        return next(p for p in self.parameters if p.name == name)

    def column(self, name: str) -> NDArray[np.int64]:
        """The value indices of one parameter, for the valid trials."""
        at = [p.name for p in self.parameters].index(name)
        column: NDArray[np.int64] = self.places[:, at]
        return column

    def varied(self, configuration: Mapping[str, Value]) -> dict[str, Value]:
        """The values of the parameters that vary."""
        return {p.name: configuration[p.name] for p in self.parameters}


def _parameters(trials: Sequence[Trial], known: Sequence[Parameter]) -> list[Parameter]:
    tried: dict[str, dict[tuple[type, Value], Value]] = {}
    for trial in trials:
        for name, value in trial.configuration.items():
            tried.setdefault(name, {})[_key(value)] = value
    domains = {parameter.name: parameter for parameter in known}
    return [_parameter(name, found.values(), domains.get(name)) for name, found in tried.items()]


def _parameter(name: str, tried: Iterable[Value], domain: Parameter | None) -> Parameter:
    values = {_key(value): value for value in tried}
    if domain is not None and domain.cardinality <= _MOST_VALUES:
        values = {**{_key(value): value for value in domain.values}, **values}
    found = list(values.values())
    if all(isinstance(value, bool) for value in found):
        return Boolean(name, sorted(found))
    numbers = [v for v in found if isinstance(v, (int, float)) and not isinstance(v, bool)]
    ordered = len(numbers) == len(found) and (domain is None or domain.ordered)
    return OrderedParameter(name, sorted(numbers)) if ordered else Categorical(name, found)


def _key(value: Value) -> tuple[type, Value]:
    return type(value), value  # True is no 1
