"""Depth-first enumeration where a diagram in the space's own order is too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evotune.space.counting.expansion import ROOT, States, Variable, expand, unknown_bounds
from evotune.space.counting.residual import Residuals
from evotune.space.language.interning import Interner
from evotune.space.language.nodes import Node


class Backtracking:
    """Walks the variables in their order; a step can turn out to be a dead end."""

    root = ROOT

    def __init__(
        self, variables: Sequence[Variable], conditions: Sequence[Node], interner: Interner
    ) -> None:
        residuals = Residuals(conditions, interner)
        residuals.constant_checks()  # the diagram has them
        self._variables = variables
        self._unknown = unknown_bounds(variables)
        self._steps = [residuals.learn(variable.name) for variable in variables]

    def steps(self, depth: int, state: States) -> Iterator[tuple[int, States]]:
        rows, states = expand(self._variables[depth], self._steps[depth], state, self._unknown)
        for number, index in enumerate(rows.tolist()):
            yield index, states.take(np.array([number]))
