"""A layered decision diagram of all valid value combinations of some parameters.

Each parameter has a layer. A state of a layer stands for all partial configurations with the
same slots (see `residual`). So the time for counting, uniform sampling, enumeration and nearest
valid configurations grows with the states, not with the configurations.
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

from evotune.space.counting._residual import Residuals
from evotune.space.counting.effort import Deadline, Patience
from evotune.space.counting.expansion import (
    ROOT,
    Variable,
    expand,
    holds_always,
    merge,
    unknown_bounds,
)
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
    cumulative: Array  # sum of completions of the transitions before; len(choices) + 1 entries


@dataclass(frozen=True)
class Diagram:
    """All valid combinations; every state can be completed to one.

    When not `exact`, it holds a random part of them, and `count` estimates the number of all.
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
        if len(self._columns) == 1:  # a parameter without constraints needs no more
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
        """The layers' arrays, made fast to read number by number; without copies where possible."""
        return [
            tuple(map(_readable, (layer.starts, layer.choices, layer.targets, layer.cumulative)))
            for layer in self.layers
        ]

    def steps(self, depth: int, state: int, patience: Patience) -> Iterator[tuple[int, int]]:
        """The value indices possible in this state, ascending, and the states they lead to."""
        layer = self.layers[depth]
        owned = slice(layer.starts[state], layer.starts[state + 1])
        return zip(layer.choices[owned].tolist(), layer.targets[owned].tolist(), strict=True)

    def nearest(self, wanted: Sequence[int], rng: random.Random) -> list[int]:
        """A combination that differs from `wanted` in as few variables as possible.

        An index of -1 wants no value in particular. Among equally near combinations `rng` chooses.
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
        """For each layer: the fewest differences from each of its transitions to the end."""
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


class Budget:
    """Limits a whole diagram: it is given up when its layers together took more rows or steps."""

    def __init__(self, max_rows: int, max_steps: int, deadline: Deadline) -> None:
        self.deadline = deadline
        self._rows = max_rows
        self._steps = max_steps

    def keep(self, states: int, width: int, row_steps: int) -> Array | None:
        self._rows -= states * width
        self._steps -= states * width * row_steps
        return None if min(self._rows, self._steps) < 0 else np.arange(states)


class Thinning:
    """Limits each layer: one that would take more rows than allowed, or more than its share of the
    steps, keeps a random part of its states."""

    def __init__(
        self, max_layer_rows: int, max_steps: int, layers: int, seed: int, deadline: Deadline
    ) -> None:
        self.deadline = deadline
        self._max_layer_rows = max_layer_rows
        self._steps = max_steps
        self._layers = layers
        self._rng = np.random.default_rng(seed)

    def keep(self, states: int, width: int, row_steps: int) -> Array:
        rows = min(self._max_layer_rows, self._steps // self._layers // row_steps)
        kept = min(states, max(1, rows // width))
        self._steps = max(0, self._steps - kept * width * row_steps)
        self._layers -= 1
        if kept == states:
            return np.arange(states)
        return np.sort(self._rng.choice(states, size=kept, replace=False))


def build_diagram(
    variables: Sequence[Variable], conditions: Sequence[Node], interner: Interner, budget: Budget
) -> Diagram | None:
    """The diagram of the combinations for which all conditions hold, or None if the budget is
    too small. A condition that cannot be evaluated does not hold. OutOfTime when the budget's
    deadline passes."""
    return _build(variables, conditions, interner, budget)


def build_thinned(
    variables: Sequence[Variable],
    conditions: Sequence[Node],
    interner: Interner,
    thinning: Thinning,
) -> Diagram:
    """Like `build_diagram`, but with a random part of the states of layers that are too large."""
    diagram = _build(variables, conditions, interner, thinning)
    assert diagram is not None
    return diagram


def _build(
    variables: Sequence[Variable],
    conditions: Sequence[Node],
    interner: Interner,
    budget: Budget | Thinning,
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
        step = residuals.learn(variable.name)
        kept = budget.keep(states.count, width, step.row_steps)
        if kept is None:
            return None
        rows, expanded = expand(variable, step, states.take(kept), unknown, budget.deadline)
        scale *= Fraction(states.count, len(kept))
        starts = _starts(rows, kept, states.count, width)
        if not len(rows):
            return Diagram(tuple(variables), (), 0, 0, scale == 1)
        states, targets = merge(expanded)
        layers.append(Layer(starts, rows % width, targets, np.empty(0)))
    return _counted(tuple(variables), layers, scale)


def _starts(rows: Array, kept: Array, states: int, width: int) -> Array:
    """The place where each state's rows begin; a state that was not kept has no rows."""
    originals = kept[rows // width]
    return np.searchsorted(originals, np.arange(states + 1))


def _counted(variables: tuple[Variable, ...], layers: list[Layer], scale: Fraction) -> Diagram:
    """Counts completions from the end, and drops states that cannot be completed."""
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
