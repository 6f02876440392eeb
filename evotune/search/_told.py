"""The trials told, kept in columns: some 20 bytes for each, and a snapshot is read at once."""

from __future__ import annotations

import base64
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evotune.search._encoding import Encoder, Floats, Indices, Rows
from evotune.trial import Configuration, Json

Numbers: TypeAlias = NDArray[np.intp]

_ROOM: Final = 256  # trials before the columns grow first
_KEPT: Final = 128  # newest configurations that are kept as objects


class ToldTrials:
    """Trials, numbered in the order of telling.

    A configuration is kept as the indices of its values, and made again when it is asked for. A
    trial counts unless its configuration was dropped later, since it was measured again.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._set(encoder.no_indices(), np.empty(0))

    def _set(self, indices: Indices, fitness: Floats) -> None:
        count = self._count = len(fitness)
        self._indices = np.concatenate(
            [indices, np.zeros_like(indices, shape=(_ROOM, indices.shape[1]))]
        )
        self._fitness = np.concatenate([fitness, np.zeros(_ROOM)])  # NaN: failed
        self._dropped = np.zeros(count + _ROOM, dtype=np.bool_)
        self._recent: dict[int, Configuration] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, configuration: Configuration, fitness: float | None) -> None:
        number = self._count
        if number == len(self._fitness):
            self._indices = np.concatenate([self._indices, np.zeros_like(self._indices)])
            self._fitness = np.concatenate([self._fitness, np.zeros_like(self._fitness)])
            self._dropped = np.concatenate([self._dropped, np.zeros_like(self._dropped)])
        self._indices[number] = self._encoder.indices(configuration)
        self._fitness[number] = np.nan if fitness is None else fitness
        self._keep(number, configuration)
        self._count += 1

    def _keep(self, number: int, configuration: Configuration) -> None:
        self._recent[number] = configuration
        self._recent.pop(number - _KEPT, None)

    def drop(self, configuration: Configuration) -> None:
        """Makes the configuration's trials so far count no longer."""
        self._dropped[: self._count] |= self._are(configuration, self._count)

    def _are(self, configuration: Configuration, before: int) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = (
            self._indices[:before] == self._encoder.indices(configuration)
        ).all(axis=1)
        return same

    def has(self, configuration: Configuration, before: int) -> bool:
        """Whether a trial with a number below `before` had the configuration. Reads all of these
        trials."""
        return bool(self._are(configuration, before).any())

    def configuration(self, number: int) -> Configuration:
        found = self._recent.get(number)
        if found is None:
            found = self._encoder.configuration(self._indices[number].tolist())
            if number >= self._count - _KEPT:
                self._recent[number] = found
        return found

    def fitness(self, number: int) -> float | None:
        """The trial's fitness; None when it failed or does not count."""
        found = float(self._fitness[number])
        return None if self._dropped[number] or np.isnan(found) else found

    def failed(self, number: int) -> bool:
        """Whether the trial failed; False when it does not count."""
        return bool(np.isnan(self._fitness[number]) and not self._dropped[number])

    def successes(self, before: int) -> tuple[Numbers, Floats]:
        """The numbers, in order, and the fitness of the trials below `before` that succeeded and
        count."""
        fitness = self._fitness[:before]
        numbers = np.flatnonzero(~(np.isnan(fitness) | self._dropped[:before]))
        return numbers, fitness[numbers]

    def newest(self, before: int, count: int) -> tuple[Numbers, Floats]:
        """The numbers of the last `count` trials below `before` that count, in order, and for each
        1.0 for a success, 0.0 for a failure."""
        numbers = np.flatnonzero(~self._dropped[:before])[-count:]
        return numbers, (~np.isnan(self._fitness[numbers])).astype(np.float64)

    def rows(self, numbers: Numbers) -> Rows:
        return self._encoder.rows(self._indices[numbers])

    def snapshot(self) -> dict[str, Json]:
        count = self._count
        return {
            "indices": _text(self._indices[:count]),
            "fitness": _text(self._fitness[:count].astype("<f8", copy=False)),
            "dropped": np.flatnonzero(self._dropped[:count]).tolist(),
        }

    def restore(self, snapshot: Json) -> None:
        """Raises ValueError, TypeError or KeyError if the JSON is no snapshot."""
        fitness = np.frombuffer(base64.b64decode(snapshot["fitness"], validate=True), "<f8")
        indices = self._encoder.no_indices()
        found = np.frombuffer(base64.b64decode(snapshot["indices"], validate=True), indices.dtype)
        indices = found.reshape(len(fitness), indices.shape[1])
        dropped = np.array(snapshot["dropped"], dtype=np.intp)
        if np.isinf(fitness).any() or not self._encoder.are_valid(indices):
            raise ValueError("a trial that cannot have been told")
        if not ((dropped >= 0) & (dropped < len(fitness))).all():
            raise ValueError("a trial was dropped that was never told")
        self._set(indices, fitness.astype(np.float64))
        self._dropped[dropped] = True


def _text(column: NDArray[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(column).tobytes()).decode()
