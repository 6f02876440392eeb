"""The set of valid combinations, factored into parts that share no constraint."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evotune.space.counting.backtracking import Backtracking
from evotune.space.counting.diagram import Diagram, build_diagram, build_thinned
from evotune.space.counting.expansion import Variable
from evotune.space.counting.residual import conjuncts
from evotune.space.language.interning import Interner
from evotune.space.language.nodes import Node


@dataclass(frozen=True, slots=True)
class Effort:
    """How many state x value evaluations solving a part may take, so that the result never
    depends on how fast the machine is.

    First in the order of the space, then in a better order, then with a random part of the
    states of a layer, `thinned_tries` times.
    """

    in_order_rows: int = 1_000_000
    reordered_rows: int = 4_000_000
    thinned_layer_rows: int = 400_000
    thinned_tries: int = 4


ENOUGH_MEMBERS = 256  # of a thinned diagram: below it, another one is tried
FULL = Effort()
QUICK = Effort(300_000, 300_000, 100_000, 1)  # for questions asked once a constraint


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
    """The variables so that conditions are decided early: always next the one with the fewest
    undecided combinations."""
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
    ) -> None:
        self.variables = tuple(variables)
        place = {variable.name: i for i, variable in enumerate(variables)}
        parts, constant = independent_parts(variables, conditions, interner)
        first = Part(parts[0].variables, (*parts[0].conditions, *constant))
        solved = [_solve(part, interner, effort) for part in (first, *parts[1:])]
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
        """Every member once, in lexicographic order of the indices."""
        owner = [(0, 0)] * len(self.variables)
        for part, places in enumerate(self._walk_places):
            for depth, place in enumerate(places):
                owner[place] = (part, depth)
        indices = [0] * len(self.variables)
        states: list[Any] = [walk.root for walk in self._walks]

        last = len(indices) - 1

        def walk(place: int) -> Iterator[list[int]]:
            part, depth = owner[place]
            before = states[part]
            for index, state in self._walks[part].steps(depth, before):
                indices[place] = index
                if place == last:  # here: a generator for each member would take long
                    yield indices.copy()
                    continue
                states[part] = state
                yield from walk(place + 1)
            states[part] = before

        return walk(0) if self.count else iter(())


class Walk(Protocol):
    """Steps through a part's variables in the order of the space."""

    @property
    def root(self) -> Any: ...

    def steps(self, depth: int, state: Any) -> Iterator[tuple[int, Any]]: ...


def _solve(part: Part, interner: Interner, effort: Effort) -> tuple[Diagram, Walk]:
    """The part's diagram, exact if that is affordable, and how to enumerate it."""
    diagram = build_diagram(part.variables, part.conditions, interner, effort.in_order_rows)
    if diagram is not None:
        return diagram, diagram
    walk = Backtracking(part.variables, part.conditions, interner)
    order = completing_order(part, interner)
    diagram = build_diagram(order, part.conditions, interner, effort.reordered_rows)
    if diagram is not None:
        return diagram, walk
    thinned = []
    for seed in range(effort.thinned_tries):
        rows = effort.thinned_layer_rows
        thinned.append(build_thinned(order, part.conditions, interner, rows, seed))
        if thinned[-1].exact or thinned[-1].members >= ENOUGH_MEMBERS:
            break
    return max(thinned, key=lambda diagram: diagram.members), walk
