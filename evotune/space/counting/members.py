"""The set of all valid combinations, factored into parts that share no constraint."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from evotune.space.counting._diagram import Budget, Diagram, Thinning, build_diagram, build_thinned
from evotune.space.counting._residual import Residuals, conjuncts
from evotune.space.counting.effort import FULL, NEVER, Deadline, Effort, OutOfSteps, Patience
from evotune.space.counting.expansion import ROOT, States, Variable, expand, unknown_bounds
from evotune.space.language.interning import Interner
from evotune.space.language.nodes import Node

# --- Depth-first enumeration where a diagram in the space's own order is too large ----------------

_CALLS = 30  # numpy calls for a state, apart from those that evaluate its conditions


class Backtracking:
    """Walks the variables in their order; a step can turn out to be a dead end."""

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
        """The possible values and the states that they lead to. OutOfSteps when patience ends."""
        patience.spend(_CALLS + self._steps[depth].length)
        rows, states = expand(self._variables[depth], self._steps[depth], state, self._unknown)
        for number, index in enumerate(rows.tolist()):
            yield index, states.take(np.array([number]))


ENOUGH_MEMBERS = 256  # of a thinned diagram: below it, another one is tried
# Shares of a part's steps: for a diagram in the space's order, and for one in a better order. The
# remaining steps are for thinned diagrams.
_IN_ORDER, _REORDERED = 1 / 8, 3 / 8


@dataclass(frozen=True, slots=True)
class Part:
    """Variables connected by conditions, with no connection to any other part."""

    variables: tuple[Variable, ...]
    conditions: tuple[Node, ...]


def independent_parts(
    variables: Sequence[Variable], conditions: Sequence[Node], interner: Interner
) -> tuple[list[Part], list[Node]]:
    """The parts, in the order of their first variables, and conditions without variables."""
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
    """All valid combinations of a space's genes, as value indices."""

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
        """One member, uniformly where counting is exact."""
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

        If the walk takes too many steps from one member to the next, it ends. Then the members
        behind it that counting found follow, in another order.
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
