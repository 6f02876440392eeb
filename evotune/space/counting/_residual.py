"""Reduces a set of constraints to what it still needs once some parameters are known.

After each parameter, the largest subtrees whose value is known become slots; the rest of
the constraint refers to the slots. Two partial configurations with equal slots have the
same valid completions, however they differ in their parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evotune.space.language.interning import Interner
from evotune.space.language.nodes import Name, Node, Operation, post_order

_BOUNDS = 8  # numbers read or written for an operation's bounds
_SORTING = 25  # and to tell states apart by a slot
ASSOCIATIVE = frozenset({"and", "or", "min", "max"})


@dataclass(frozen=True, slots=True)
class Step:
    """The work that is due when one more parameter becomes known.

    - `checks`: the conditions that must hold now.
    - `slots`: each new slot's name, and the tree over old slots and the parameter that computes it.
    - `prospects`: the conditions that the parameter has brought closer to a decision, over new
      slots and unknown parameters.
    """

    checks: tuple[Node, ...]
    slots: tuple[tuple[Name, Node], ...]
    prospects: tuple[Node, ...]

    @property
    def length(self) -> int:
        """The number of operations that are evaluated; the same for one row and for many."""
        slots = (node for _, node in self.slots)
        return self._nodes([*self.checks, *slots, *self.prospects])

    @property
    def row_steps(self) -> int:
        """About how many numbers are read or written for a row."""
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
    """The conditions not decided yet, rewritten parameter by parameter."""

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
        """Makes `parameter` known, and returns the step that this takes."""
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
