"""Configurations as numbers: indices of values for storing them, rows for the models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evotune.space.parameters import Parameter
from evotune.trial import Configuration, Value

Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.int64]  # configurations x axes: places on the axes
Indices: TypeAlias = NDArray[np.unsignedinteger]  # configurations x parameters: indices of values

_FINEST: Final = 1024  # places told apart on one axis


class Encoder:
    """Turns configurations into indices and rows. Indices are exact. Rows leave out parameters with
    a single value, and an axis has at most 1024 places. `axes` holds for each axis the distance at
    each difference of places, in widths of the axis. A value outside the domain comes last.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = tuple(parameters)
        self._known: list[dict[Value, int]] = [{} for _ in parameters]
        self._names = [parameter.name for parameter in parameters]
        counts = [p.cardinality + len(p.outside) for p in parameters]
        self._counts = np.array(counts, dtype=np.int64)
        self._used = [i for i, count in enumerate(counts) if count > 1]
        self.axes = [
            _axis_distances(parameters[i].ordered, min(counts[i], _FINEST)) for i in self._used
        ]
        self._type = np.min_scalar_type(int(self._counts.max(initial=1)) - 1).newbyteorder("<")

    def indices(self, configuration: Mapping[str, Value]) -> list[int]:
        """The index of each value in its parameter. ValueError for a value that it cannot have."""
        if isinstance(configuration, Configuration):  # a dict is read without Python calls
            configuration = configuration.to_json()
        values = [configuration[name] for name in self._names]
        try:
            return [known[value] for known, value in zip(self._known, values, strict=True)]
        except KeyError:
            for parameter, known, value in zip(self._parameters, self._known, values, strict=True):
                if value not in known:
                    known[value] = _index(parameter, value)
            return self.indices(configuration)

    def no_indices(self) -> Indices:
        """An empty matrix, of the smallest type that holds every index."""
        return np.empty((0, len(self._parameters)), dtype=self._type)

    def configuration(self, indices: Iterable[int]) -> Configuration:
        """The inverse of `indices`."""
        values = zip(self._parameters, indices, strict=True)
        return Configuration({parameter.name: _value(parameter, i) for parameter, i in values})

    def are_valid(self, indices: Indices) -> bool:
        return bool((indices < self._counts).all())

    def row(self, configuration: Mapping[str, Value]) -> Rows:
        row: Rows = self.rows([self.indices(configuration)])[0]
        return row

    def rows(self, indices: Indices | Sequence[Sequence[int]]) -> Rows:
        places = np.array(indices, dtype=np.int64)[:, self._used]
        for axis, count in enumerate(self._counts[self._used]):
            if count > _FINEST:
                places[:, axis] = places[:, axis] * (_FINEST - 1) // (count - 1)
        return places


def _index(parameter: Parameter, value: Value) -> int:
    if value in parameter.outside:
        return parameter.cardinality
    return parameter.index(value)


def _value(parameter: Parameter, index: int) -> Value:
    if index == parameter.cardinality:
        return parameter.outside[0]
    return parameter.values[index]


def _axis_distances(ordered: bool, count: int) -> Floats:
    return np.arange(count) / (count - 1) if ordered else np.minimum(np.arange(count), 1.0)
