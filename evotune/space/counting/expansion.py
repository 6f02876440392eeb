"""Makes a layer of partial configurations from the previous layer, with numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evotune.space.language.columns import (
    Array,
    Bounds,
    Column,
    bounds_of_column,
    bounds_of_values,
    can_hold,
    codes,
    column_of,
    evaluate_columns,
)
from evotune.space.language.nodes import Interner, Name, Node, Operation, post_order
from evotune.trial import Value

# Limits on the work of counting: in steps if a search depends on it, otherwise in seconds.
#
# A search must not depend on how fast or how busy a machine is. So counted steps limit the work for
# a search's questions. Seconds limit only the work for a text that is shown to a user.
SHOWN_S = 10.0
"""The seconds for finding how much each constraint removes, or which constraints empty a space."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits on the work of solving a space.

    A diagram of the space is made in the order of its parameters. If it exceeds a limit, a better
    order is tried. If that diagram exceeds a limit too, each layer gets only a random part of its
    states.

    - `in_order_rows`, `reordered_rows`: the most rows of a diagram in the first and in the better
      order. A row is a state with one value of the next parameter.
    - `thinned_layer_rows`: the most rows of one layer that has a part of its states.
    - `thinned_tries`: how many diagrams with thinned layers are tried.
    - `steps`: the most numbers read or written, in all attempts on all parts of the space together.
      A row costs a step for each operation in the conditions of its layer.
    """

    in_order_rows: int = 1_000_000
    reordered_rows: int = 4_000_000
    thinned_layer_rows: int = 400_000
    thinned_tries: int = 4
    steps: int = 4_000_000_000


FULL = Effort()
QUICK = Effort(300_000, 300_000, 100_000, 1, 500_000_000)  # for each constraint's own count


class OutOfTime(Exception):
    """Raised when a deadline has passed."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time, by a clock that tests may set."""

    end_s: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        return cls(clock() + seconds, clock)

    def check(self) -> None:
        """Raises OutOfTime if the deadline has passed."""
        if self.clock() > self.end_s:
            raise OutOfTime

    def share(self, parts: int) -> Deadline:
        """The deadline of the first part if the remaining time is divided into `parts` equal
        parts."""
        now_s = self.clock()
        return Deadline(now_s + max(0.0, self.end_s - now_s) / parts, self.clock)


NEVER = Deadline(float("inf"), lambda: 0.0)


class Patience:
    """Counts the steps that a walk takes from one configuration to the next. Raises OutOfSteps
    beyond the limit."""

    MOST = 200_000

    def __init__(self, most: int = MOST) -> None:
        self._most = self._left = most

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise OutOfSteps

    def renew(self) -> None:
        self._left = self._most


class OutOfSteps(Exception):
    """Raised when a walk finds no configuration within the steps that it may take."""


# Reduces a set of constraints to what it still needs once some parameters are known.
#
# After each parameter, the largest subtrees whose value is known become slots; the rest of
# the constraint refers to the slots. Two partial configurations with equal slots have the
# same valid completions, however they differ in their parameters.
_BOUNDS = 8  # numbers read or written for an operation's bounds
_SORTING = 25  # and to distinguish states by a slot
ASSOCIATIVE = frozenset({"and", "or", "min", "max"})


@dataclass(frozen=True, slots=True)
class Step:
    """The work to do when one more parameter becomes known.

    - `checks`: the conditions that must hold now.
    - `slots`: each new slot's name, and the tree over old slots and the parameter that computes it.
    - `prospects`: the undecided conditions in which the parameter occurs, over new slots and
      unknown parameters.
    """

    checks: tuple[Node, ...]
    slots: tuple[tuple[Name, Node], ...]
    prospects: tuple[Node, ...]

    @property
    def length(self) -> int:
        """The number of operations that are evaluated. It does not depend on the number of rows."""
        slots = (node for _, node in self.slots)
        return self._nodes([*self.checks, *slots, *self.prospects])

    @property
    def row_steps(self) -> int:
        """An estimate of the numbers that are read or written for a row."""
        exact = self._nodes([*self.checks, *(node for _, node in self.slots)])
        return 1 + exact + _BOUNDS * self._nodes(self.prospects) + _SORTING * len(self.slots)

    @staticmethod
    def _nodes(roots: Iterable[Node]) -> int:
        seen: set[Node] = set()
        for root in roots:
            for node in post_order(root, seen):
                seen.add(node)
        return len(seen)


def conjuncts(node: Node) -> Iterable[Node]:
    """The conditions that all have to hold for `node` to hold."""
    waiting, seen = [node], set[Node]()
    while waiting:
        part = waiting.pop()
        if part in seen:
            continue
        seen.add(part)
        if isinstance(part, Operation) and part.operator == "and":
            waiting.extend(reversed(part.operands))
        else:
            yield part


class Residuals:
    """The conditions that are not decided yet, rewritten as parameters become known."""

    def __init__(self, conditions: Iterable[Node], interner: Interner) -> None:
        self.interner = interner
        unique = dict.fromkeys(part for node in conditions for part in conjuncts(node))
        self.pending: list[Node] = list(unique)
        self._layer = 0
        self._known: set[str] = set()

    def constant_checks(self) -> list[Node]:
        """Removes and returns the conditions that depend on no parameter."""
        constant = [node for node in self.pending if not self.interner.names(node)]
        self.pending = [node for node in self.pending if self.interner.names(node)]
        return constant

    def learn(self, parameter: str) -> Step:
        """Makes `parameter` known, and returns the work for it."""
        self._layer += 1
        known = self._known | {parameter}
        rewrite = _Rewrite(self.interner, known, self._layer)
        checks: list[Node] = []
        pending: dict[Node, None] = {}
        prospects: dict[Node, None] = {}
        for node in self.pending:
            if self.interner.names(node) <= known:
                checks.append(node)
            else:
                rewritten = rewrite.rewritten(node)
                pending[rewritten] = None
                if parameter in self.interner.names(node):
                    prospects[rewritten] = None
        self.pending = list(pending)
        self._known = {slot.name for slot, _ in rewrite.slots.values()}
        return Step(tuple(checks), tuple(rewrite.slots.values()), tuple(prospects))


class _Rewrite:
    def __init__(self, interner: Interner, known: set[str], layer: int) -> None:
        self.interner = interner
        self.known = known
        self.layer = layer
        self.slots: dict[Node, tuple[Name, Node]] = {}
        self.done: dict[Node, Node] = {}

    def rewritten(self, node: Node) -> Node:
        for part in post_order(node, self.done, self._rewritten_parts):
            self.done[part] = self._rewritten(part)
        return self.done[node]

    def _is_known(self, node: Node) -> bool:
        names = self.interner.names(node)
        return bool(names) and names <= self.known

    def _rewritten_parts(self, node: Node) -> tuple[Node, ...]:
        if not isinstance(node, Operation) or self._is_known(node):
            return ()
        if node.operator in ASSOCIATIVE:
            return self._grouped(node.operator, node.operands)
        return node.operands

    def _rewritten(self, node: Node) -> Node:
        if self._is_known(node):
            return self._slot(node)
        if not isinstance(node, Operation):
            return node
        operands = [self.done[part] for part in self._rewritten_parts(node)]
        return self.interner.operation(node.operator, operands)

    def _grouped(self, operator: str, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        """Joins the leading known operands into one, so that they fill one slot.

        Only leading ones are joined: `and` and `or` must not evaluate an operand before those
        that guard it.
        """
        count = 0
        for operand in operands:
            if not self.interner.names(operand) <= self.known:
                break
            count += 1
        # A node without names, as `3 * (1 // 0)`, has only known operands: nothing to join.
        if count < 2 or count == len(operands):
            return operands
        return (self.interner.operation(operator, operands[:count]), *operands[count:])

    def _slot(self, node: Node) -> Node:
        if node not in self.slots:
            slot = self.interner.name(f"#{self.layer}.{len(self.slots)}")
            assert isinstance(slot, Name)
            self.slots[node] = (slot, node)
        return self.slots[node][0]


CHUNK_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter and the values that it can have in a valid configuration."""

    name: str
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class States:
    """`count` partial configurations, distinguished by their slots."""

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

    Returns the rows that stay, numbered state x width + value, and their slots. Raises OutOfTime
    when the deadline passes.
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
    """Merges states with equal slots. Returns the merged states, and each old state's new
    number."""
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
