"""Represents the set of all valid combinations, factored into parts that share no constraint.

It counts and samples exactly without enumerating the Cartesian product.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Protocol

import numpy as np

from evotune.space.counting.expansion import (
    FULL,
    NEVER,
    ROOT,
    Deadline,
    Effort,
    OutOfSteps,
    Patience,
    Residuals,
    States,
    Variable,
    conjuncts,
    expand,
    holds_always,
    merge,
    unknown_bounds,
)
from evotune.space.language.columns import Array
from evotune.space.language.nodes import Interner, Node

ENOUGH_MEMBERS = 256  # of a thinned diagram: below it, another one is tried
# Shares of a part's steps: for a diagram in the space's order, and for one in a better order. The
# remaining steps are for thinned diagrams.
_IN_ORDER, _REORDERED = 1 / 8, 3 / 8


@dataclass(frozen=True, slots=True)
class Part:
    """Variables that conditions connect with each other and with no other variable."""

    variables: tuple[Variable, ...]
    conditions: tuple[Node, ...]


def independent_parts(
    variables: Sequence[Variable], conditions: Sequence[Node], interner: Interner
) -> tuple[list[Part], list[Node]]:
    """The parts, in the order of their first variables, and the conditions without variables."""
    leader = {variable.name: variable.name for variable in variables}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    split = list(dict.fromkeys(part for node in conditions for part in conjuncts(node)))
    for node in split:
        first, *rest = sorted(interner.names(node)) or [""]
        for name in rest:
            leader[find(name)] = find(first)
    constant = [node for node in split if not interner.names(node)]
    parts = []
    for variable in variables:
        group = [other for other in variables if find(other.name) == find(variable.name)]
        if group[0] is variable:
            names = {member.name for member in group}
            inside = [node for node in split if interner.names(node) & names]
            parts.append(Part(tuple(group), tuple(inside)))
    return parts, constant


def completing_order(part: Part, interner: Interner) -> list[Variable]:
    """The variables in an order that decides conditions early: the next variables are always
    those of the condition with the fewest undecided combinations."""
    remaining = dict.fromkeys(variable.name for variable in part.variables)
    by_name = {variable.name: variable for variable in part.variables}
    waiting = [interner.names(node) for node in part.conditions]
    order: list[str] = []
    while waiting:
        waiting = [names for names in waiting if names & remaining.keys()]
        if not waiting:
            break

        def combinations(names: frozenset[str]) -> int:
            product = 1
            for name in names & remaining.keys():
                product *= len(by_name[name].values)
            return product

        chosen = min(waiting, key=combinations)
        for name in [name for name in remaining if name in chosen]:
            order.append(name)
            del remaining[name]
    order.extend(remaining)
    return [by_name[name] for name in order]


class Members:
    """The set of all valid combinations of a space's genes. A combination is a list of value
    indices."""

    def __init__(
        self,
        variables: Sequence[Variable],
        conditions: Sequence[Node],
        interner: Interner,
        effort: Effort = FULL,
        deadline: Deadline = NEVER,
    ) -> None:
        """OutOfTime when the deadline passes."""
        self.variables = tuple(variables)
        place = {variable.name: i for i, variable in enumerate(variables)}
        parts, constant = independent_parts(variables, conditions, interner)
        first = Part(parts[0].variables, (*parts[0].conditions, *constant))
        entangled = sum(bool(part.conditions) for part in parts)
        effort = dataclasses.replace(effort, steps=effort.steps // max(1, entangled))
        solved = [_solve(part, interner, effort, deadline) for part in (first, *parts[1:])]
        self._diagrams = [diagram for diagram, _ in solved]
        self._walks = [walk for _, walk in solved]
        self._walk_places = [[place[v.name] for v in part.variables] for part in parts]
        self._places = [
            [place[variable.name] for variable in diagram.variables] for diagram in self._diagrams
        ]
        self.count = 1
        for diagram in self._diagrams:
            self.count *= diagram.count
        self.in_order = all(isinstance(walk, Diagram) for walk in self._walks)
        self.transitions = sum(diagram.transitions for diagram in self._diagrams)
        self.exact = all(diagram.exact for diagram in self._diagrams)
        self.is_empty = any(diagram.exact and not diagram.count for diagram in self._diagrams)
        """Whether it is certain that no combination is valid."""

    def sample(self, rng: random.Random) -> list[int]:
        """A random member, uniformly if counting is exact."""
        return self._joined([diagram.sample(rng) for diagram in self._diagrams])

    def nearest(self, wanted: Sequence[int], rng: random.Random) -> list[int]:
        """A member with as few indices as possible that differ from `wanted`."""
        return self._joined(
            [
                diagram.nearest([wanted[place] for place in places], rng)
                for diagram, places in zip(self._diagrams, self._places, strict=True)
            ]
        )

    def _joined(self, chosen: Sequence[Sequence[int]]) -> list[int]:
        indices = [0] * len(self.variables)
        for places, values in zip(self._places, chosen, strict=True):
            for place, value in zip(places, values, strict=True):
                indices[place] = value
        return indices

    def enumerate(self) -> Iterator[list[int]]:
        """Every member once, in lexicographic order of the indices.

        If the walk takes too many steps from one member to the next, it ends. Then the remaining
        members that counting found follow, in another order.
        """
        if not self.count:
            return
        last: list[int] = []
        try:
            for last in self._walked(self._walks, self._walk_places, by_place=True):
                yield last
        except OutOfSteps:
            found = self._walked(self._diagrams, self._places, by_place=False)
            yield from (indices for indices in found if indices > last)

    def _walked(
        self, walks: Sequence[Walk], places: Sequence[Sequence[int]], *, by_place: bool
    ) -> Iterator[list[int]]:
        """The members along these walks. OutOfSteps when the next one takes too many steps."""
        route = [
            (place, part, depth)
            for part, own in enumerate(places)
            for depth, place in enumerate(own)
        ]
        if by_place:
            route.sort()
        indices = [0] * len(self.variables)
        states: list[Any] = [walk.root for walk in walks]
        patience = Patience()
        last = len(route) - 1

        def walk(stage: int) -> Iterator[list[int]]:
            place, part, depth = route[stage]
            before = states[part]
            for index, state in walks[part].steps(depth, before, patience):
                indices[place] = index
                if stage == last:  # here: a generator for each member would take long
                    yield indices.copy()
                    patience.renew()
                    continue
                states[part] = state
                yield from walk(stage + 1)
            states[part] = before

        return walk(0)


class Walk(Protocol):
    """Steps through a part's variables in the order of the space."""

    @property
    def root(self) -> Any: ...

    def steps(self, depth: int, state: Any, patience: Patience) -> Iterator[tuple[int, Any]]: ...


def _solve(
    part: Part, interner: Interner, effort: Effort, deadline: Deadline
) -> tuple[Diagram, Walk]:
    """The part's diagram, exact if the steps suffice, and the walk that enumerates the part."""
    budget = Budget(effort.in_order_rows, int(effort.steps * _IN_ORDER), deadline)
    diagram = build_diagram(part.variables, part.conditions, interner, budget)
    if diagram is not None:
        return diagram, diagram
    walk = Backtracking(part.variables, part.conditions, interner)
    order = completing_order(part, interner)
    budget = Budget(effort.reordered_rows, int(effort.steps * _REORDERED), deadline)
    diagram = build_diagram(order, part.conditions, interner, budget)
    if diagram is not None:
        return diagram, walk
    thinned = []
    for seed in range(effort.thinned_tries):
        steps = int(effort.steps * (1 - _IN_ORDER - _REORDERED)) // effort.thinned_tries
        thinning = Thinning(effort.thinned_layer_rows, steps, len(order), seed, deadline)
        thinned.append(build_thinned(order, part.conditions, interner, thinning))
        if thinned[-1].exact or thinned[-1].members >= ENOUGH_MEMBERS:
            break
    return max(thinned, key=lambda diagram: diagram.members), walk


# Depth-first enumeration where a diagram in the space's own order is too large.
_CALLS = 30  # numpy calls for a state, apart from those that evaluate its conditions


class Backtracking:
    """Walks the variables in their order. A step may turn out to be a dead end."""

    root = ROOT

    def __init__(
        self, variables: Sequence[Variable], conditions: Sequence[Node], interner: Interner
    ) -> None:
        residuals = Residuals(conditions, interner)
        residuals.constant_checks()  # the diagram has checked them
        self._variables = variables
        self._unknown = unknown_bounds(variables)
        self._steps = [residuals.learn(variable.name) for variable in variables]

    def steps(self, depth: int, state: States, patience: Patience) -> Iterator[tuple[int, States]]:
        """The possible values of a variable, and the state that each leads to. Raises OutOfSteps
        when patience ends."""
        patience.spend(_CALLS + self._steps[depth].length)
        rows, states = expand(self._variables[depth], self._steps[depth], state, self._unknown)
        for number, index in enumerate(rows.tolist()):
            yield index, states.take(np.array([number]))


# A layered decision diagram of all valid value combinations of some parameters.
#
# Each parameter has a layer. A state of a layer stands for all partial configurations with the same
# slots (see `residual`). So the time for counting, uniform sampling, enumeration and nearest valid
# configurations grows with the states, not with the configurations.
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
    """A decision diagram of all valid combinations. Every state can be completed to a combination.

    If it is not `exact`, it has a random part of the combinations, and `count` estimates the number
    of all.
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
        """The value indices of one combination, drawn uniformly."""
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
        """The value indices that are possible in a state, ascending, and the state that each leads
        to."""
        layer = self.layers[depth]
        owned = slice(layer.starts[state], layer.starts[state + 1])
        return zip(layer.choices[owned].tolist(), layer.targets[owned].tolist(), strict=True)

    def nearest(self, wanted: Sequence[int], rng: random.Random) -> list[int]:
        """A combination that differs from `wanted` in as few variables as possible.

        An index of -1 accepts any value. Among equally near combinations `rng` chooses.
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
    """A limit on a whole diagram, which is given up when its layers together take more rows or
    steps."""

    def __init__(self, max_rows: int, max_steps: int, deadline: Deadline) -> None:
        self.deadline = deadline
        self._rows = max_rows
        self._steps = max_steps

    def keep(self, states: int, width: int, row_steps: int) -> Array | None:
        self._rows -= states * width
        self._steps -= states * width * row_steps
        return None if min(self._rows, self._steps) < 0 else np.arange(states)


class Thinning:
    """A limit on each layer. A layer that would take more rows than allowed, or more than its share
    of the steps, has a random sample of its states."""

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
    """The diagram of the combinations for which all conditions hold, or None if the budget is too
    small. A condition that cannot be evaluated does not hold. Raises OutOfTime when the budget's
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
