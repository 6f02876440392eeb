"""Makes a layer of partial configurations from the layer before it, with numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evotune.space.counting._residual import Step
from evotune.space.counting.effort import NEVER, Deadline
from evotune.space.language.bounds import Bounds, bounds_of_column, bounds_of_values, can_hold
from evotune.space.language.columns import Array, Column, codes, column_of, evaluate_columns
from evotune.space.language.nodes import Node
from evotune.trial import Value

CHUNK_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter and the values it can take in a valid configuration."""

    name: str
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class States:
    """`count` partial configurations, told apart by their slots."""

    count: int
    slots: dict[str, Column]

    def take(self, rows: Array) -> States:
        return States(len(rows), {name: slot.take(rows) for name, slot in self.slots.items()})


ROOT = States(1, {})


def holds_always(node: Node) -> bool:
    """Whether a condition without names holds."""
    column = evaluate_columns(node, {}, 1)
    return bool(column.values[0]) and (column.failed is None or not column.failed[0])


def expand(
    variable: Variable,
    step: Step,
    states: States,
    unknown: Mapping[str, Bounds],
    deadline: Deadline = NEVER,
) -> tuple[Array, States]:
    """Joins every state with every value of the variable. A row stays if the checks of `step` hold
    and its prospects may still hold within the bounds of the `unknown` variables.

    Returns the rows that stay, numbered state x width + value, and their slots. OutOfTime when the
    deadline passes.
    """
    layer = _Layer(variable.name, column_of(variable.values), step, states, unknown)
    width = len(variable.values)
    chunk = max(1, CHUNK_ROWS // width)
    kept: list[Array] = []
    parts: list[list[Column]] = []
    for first in range(0, states.count, chunk):
        deadline.check()
        rows = np.arange(first * width, min(first + chunk, states.count) * width)
        rows, columns = layer.hopeful(layer.checked(rows))
        kept.append(rows)
        parts.append(columns)
    rows = np.concatenate(kept)
    columns = [_concatenate(pieces) for pieces in zip(*parts, strict=True)]
    slots = {slot.name: column for (slot, _), column in zip(step.slots, columns, strict=True)}
    return rows, States(len(rows), slots)


def merge(states: States) -> tuple[States, Array]:
    """Makes one state of all states with equal slots. Also returns each old state's new number."""
    code, _ = codes(list(states.slots.values()), states.count)
    _, firsts, numbers = np.unique(code, return_index=True, return_inverse=True)
    return states.take(firsts), numbers


@dataclass(frozen=True, slots=True)
class _Layer:
    """The data that all chunks of rows share. A row's number is state x width + value."""

    name: str
    values: Column
    step: Step
    states: States
    unknown: Mapping[str, Bounds]

    def checked(self, rows: Array) -> Array:
        """The rows in which the conditions that are decided by now hold."""
        for check in self.step.checks:
            column = evaluate_columns(check, self._known(rows), len(rows))
            holds = column.values.astype(bool)
            if column.failed is not None:
                holds = holds & ~column.failed
            rows = rows[holds]
        return rows

    def hopeful(self, rows: Array) -> tuple[Array, list[Column]]:
        """The rows in which the other conditions may still hold, and their new slots."""
        known = self._known(rows)
        columns = [evaluate_columns(node, known, len(rows)) for _, node in self.step.slots]
        bounds = dict(self.unknown)
        for (slot, _), column in zip(self.step.slots, columns, strict=True):
            bounds[slot.name] = bounds_of_column(column)
        hopeful = np.ones(len(rows), dtype=bool)
        for condition in self.step.prospects:
            hopeful &= can_hold(condition, bounds)
        if hopeful.all():
            return rows, columns
        return rows[hopeful], [column.take(hopeful) for column in columns]

    def _known(self, rows: Array) -> dict[str, Column]:
        width = len(self.values.values)
        slots = self.states.take(rows // width).slots
        return {**slots, self.name: self.values.take(rows % width)}


def _concatenate(pieces: Sequence[Column]) -> Column:
    if len(pieces) == 1:
        return pieces[0]
    pieces = [piece for piece in pieces if len(piece.values)] or pieces[:1]
    arrays = [piece.values for piece in pieces]
    if len({array.dtype.kind for array in arrays}) > 1:
        arrays = [array.astype(object) for array in arrays]
    failed = None
    if any(piece.failed is not None for piece in pieces):
        masks = [
            np.zeros(len(piece.values), dtype=bool) if piece.failed is None else piece.failed
            for piece in pieces
        ]
        failed = np.concatenate(masks)
    return Column(np.concatenate(arrays), failed)


def unknown_bounds(variables: Sequence[Variable]) -> dict[str, Bounds]:
    return {variable.name: bounds_of_values(variable.values) for variable in variables}
