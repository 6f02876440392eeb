"""Finds parameters that must all differ but have too few values for that.

Counting would take too long: 20 parameters with 19 values have 10^25 combinations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evotune.space.counting._residual import conjuncts
from evotune.space.counting.expansion import Variable
from evotune.space.language.nodes import Name, Node, Operation


@dataclass(frozen=True, slots=True)
class Crowd:
    """Parameters that must all differ from each other, with only `values` values in all."""

    names: tuple[str, ...]
    values: int

    def is_made_by(self, node: Node) -> bool:
        """Whether the condition demands that two of the parameters differ."""
        return any(pair <= set(self.names) for pair in _kept_apart([node]))


def find_crowd(variables: Sequence[Variable], conditions: Iterable[Node]) -> Crowd | None:
    """A crowd, by a simple search that may miss one; None if it finds none."""
    others: dict[str, set[str]] = {}
    for pair in _kept_apart(conditions):
        for name in pair:
            others.setdefault(name, set()).update(pair - {name})
    few_first = sorted(variables, key=lambda variable: len(variable.values))
    for start in few_first:
        crowd: list[str] = []
        values: set[object] = set()
        for variable in (start, *few_first):
            if others.get(variable.name, set()).issuperset(crowd) and variable.name not in crowd:
                crowd.append(variable.name)
                values.update(variable.values)
                if len(crowd) > len(values):
                    return Crowd(tuple(crowd), len(values))
    return None


def _kept_apart(conditions: Iterable[Node]) -> Iterable[frozenset[str]]:
    for condition in conditions:
        for node in conjuncts(condition):
            if isinstance(node, Operation) and node.operator == "!=":
                first, second = node.operands
                if isinstance(first, Name) and isinstance(second, Name):
                    yield frozenset((first.name, second.name))
