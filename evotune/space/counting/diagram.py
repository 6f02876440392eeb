"""A layered decision diagram of all valid value combinations of some parameters.

One layer a parameter. A state of a layer stands for all partial configurations with the
same slots (see `residual`), so counting, uniform sampling, enumeration and nearest valid
configurations cost time in states, not in configurations.
"""

from __future__ import annotations

import functools
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from evotune.space.counting.expansion import (
    ROOT,
    Variable,
    expand,
    holds_always,
    merge,
    unknown_bounds,
)
from evotune.space.counting.residual import Residuals
from evotune.space.language.columns import Array
from evotune.space.language.interning import Interner
from evotune.space.language.nodes import Node

_COUNT_LIMIT = 1 << 62


@dataclass(slots=True)
class Layer:
    """Transitions sorted by state, then by value: state s owns [starts[s], starts[s + 1])."""

    starts: Array
    choices: Array  # index of the value
    targets: Array  # state of the next layer
    cumulative: Array  # completions of all transitions before; one longer than `choices`


@dataclass(frozen=True)
class Diagram:
    """All valid combinations; every state that is left can be completed.

    When not `exact` it holds a random part of them, and `count` estimates all.
    """

    variables: tuple[Variable, ...]
    layers: tuple[Layer, ...]
    members: int  # in the diagram
    count: int
    exact: bool

    root: ClassVar[int] = 0

    @property
    def transitions(self) -> int:
        return sum(len(layer.choices) for layer in self.layers)

    def sample(self, rng: random.Random) -> list[int]:
        """Value indices of one combination, uniformly."""
        rank = rng.randrange(self.members)
        if len(self._columns) == 1:  # all that one parameter without constraints needs
            return [self._columns[0][1][rank]]
        state, chosen = 0, []
        for starts, choices, targets, cumulative in self._columns:
            first, end = starts[state], starts[state + 1]
            place = cumulative[first] + rank
            index = bisect_right(cumulative, place, first + 1, end + 1) - 1
            rank = place - cumulative[index]
            chosen.append(choices[index])
            state = targets[index]
        return chosen

    @functools.cached_property
    def _columns(self) -> list[tuple[Sequence[int], ...]]:
        """The layers' arrays as Python reads them one by one: without copies, where it can."""
        return [
            tuple(map(_readable, (layer.starts, layer.choices, layer.targets, layer.cumulative)))
            for layer in self.layers
        ]

    def steps(self, depth: int, state: int) -> Iterator[tuple[int, int]]:
        """The value indices possible in this state, ascending, and the states they lead to."""
        layer = self.layers[depth]
        owned = slice(layer.starts[state], layer.starts[state + 1])
        return zip(layer.choices[owned].tolist(), layer.targets[owned].tolist(), strict=True)

    def nearest(self, wanted: Sequence[int], rng: random.Random) -> list[int]:
        """A combination that differs from `wanted` in as few variables as possible.

        An index of -1 wants nothing. Among equally near ones `rng` chooses.
        """
        costs = self._costs(wanted)
        state, chosen = 0, []
        for depth, layer in enumerate(self.layers):
            owned = slice(layer.starts[state], layer.starts[state + 1])
            cost = costs[depth][owned]
            best = np.flatnonzero(cost == cost.min()).tolist()
            index = layer.starts[state] + rng.choice(best)
            chosen.append(int(layer.choices[index]))
            state = int(layer.targets[index])
        return chosen

    def _costs(self, wanted: Sequence[int]) -> list[Array]:
        """By layer, the fewest differences from each transition to the end."""
        after: Array = np.zeros(1, dtype=np.int64)
        costs: list[Array] = []
        for layer, want in zip(reversed(self.layers), reversed(wanted), strict=True):
            cost = after[layer.targets] + (layer.choices != want)
            costs.append(cost)
            after = np.minimum.reduceat(cost, layer.starts[:-1])
        return costs[::-1]


def _readable(array: Array) -> Sequence[int]:
    if array.dtype == object:  # counts beyond 64 bits
        counts: list[int] = array.tolist()
        return counts
    return np.ascontiguousarray(array).data


def build_diagram(
    variables: Sequence[Variable],
    conditions: Sequence[Node],
    interner: Interner,
    max_rows: int,
) -> Diagram | None:
    """The diagram of the combinations for which all conditions hold, or None if building it
    takes more than `max_rows` state x value evaluations. A condition that cannot be evaluated
    does not hold."""
    return _build(variables, conditions, interner, _Budget(max_rows))


def build_thinned(
    variables: Sequence[Variable],
    conditions: Sequence[Node],
    interner: Interner,
    max_layer_rows: int,
    seed: int,
) -> Diagram:
    """Like `build_diagram`, but a layer that would take more than `max_layer_rows` goes on
    with a random part of its states."""
    budget = _Thinning(max_layer_rows, np.random.default_rng(seed))
    diagram = _build(variables, conditions, interner, budget)
    assert diagram is not None
    return diagram


@dataclass(slots=True)
class _Budget:
    """Gives up when all layers together took more than `max_rows`."""

    max_rows: int

    def keep(self, states: int, width: int) -> Array | None:
        self.max_rows -= states * width
        return None if self.max_rows < 0 else np.arange(states)


@dataclass(slots=True)
class _Thinning:
    """Keeps as many states as fit."""

    max_layer_rows: int
    rng: np.random.Generator

    def keep(self, states: int, width: int) -> Array | None:
        most = max(1, self.max_layer_rows // width)
        if states <= most:
            return np.arange(states)
        return np.sort(self.rng.choice(states, size=most, replace=False))


def _build(
    variables: Sequence[Variable],
    conditions: Sequence[Node],
    interner: Interner,
    budget: _Budget | _Thinning,
) -> Diagram | None:
    residuals = Residuals(conditions, interner)
    if not all(holds_always(node) for node in residuals.constant_checks()):
        return Diagram(tuple(variables), (), 0, 0, True)
    unknown = unknown_bounds(variables)
    states = ROOT
    scale = Fraction(1)
    layers: list[Layer] = []
    for variable in variables:
        width = len(variable.values)
        kept = budget.keep(states.count, width)
        if kept is None:
            return None
        step = residuals.learn(variable.name)
        rows, expanded = expand(variable, step, states.take(kept), unknown)
        scale *= Fraction(states.count, len(kept))
        starts = _starts(rows, kept, states.count, width)
        if not len(rows):
            return Diagram(tuple(variables), (), 0, 0, scale == 1)
        states, targets = merge(expanded)
        layers.append(Layer(starts, rows % width, targets, np.empty(0)))
    return _counted(tuple(variables), layers, scale)


def _starts(rows: Array, kept: Array, states: int, width: int) -> Array:
    """Where each state's rows begin; a state that was not kept has none."""
    originals = kept[rows // width]
    return np.searchsorted(originals, np.arange(states + 1))


def _counted(variables: tuple[Variable, ...], layers: list[Layer], scale: Fraction) -> Diagram:
    """Counts completions from the end and drops what cannot be completed."""
    counts: Array = np.ones(1, dtype=np.int64)
    remap: Array = np.zeros(1, dtype=np.int64)
    for layer in reversed(layers):
        completions = counts[layer.targets]
        alive = completions > 0
        completions = completions[alive]
        exact = float(completions.astype(np.float64).sum()) < _COUNT_LIMIT
        if not exact:
            completions = completions.astype(object)
        kept_before = np.concatenate(([0], np.cumsum(alive)))
        starts = kept_before[layer.starts]
        zero = np.zeros(1, dtype=completions.dtype)
        cumulative = np.concatenate((zero, np.cumsum(completions)))
        counts = cumulative[starts[1:]] - cumulative[starts[:-1]]
        layer.targets = remap[layer.targets[alive]]
        layer.choices = layer.choices[alive]
        layer.cumulative = cumulative
        live = starts[1:] > starts[:-1]
        layer.starts = np.concatenate((starts[:-1][live], starts[-1:]))
        remap = np.cumsum(live) - 1
    members = int(counts[0])
    return Diagram(
        variables, tuple(layers) if members else (), members, round(members * scale), scale == 1
    )
