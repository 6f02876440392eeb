"""Depth-first enumeration where a diagram in the space's own order is too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evotune.space.counting.effort import Patience
from evotune.space.counting.expansion import ROOT, States, Variable, expand, unknown_bounds
from evotune.space.counting.residual import Residuals
from evotune.space.language.interning import Interner
from evotune.space.language.nodes import Node

_CALLS = 30  # a state's cost beside its conditions; both count numpy's calls


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
