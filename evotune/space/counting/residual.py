"""What a set of constraints still needs to remember after some parameters are known.

After each parameter, the largest subtrees whose value is known become slots; the rest of
the constraint refers to the slots. Two partial configurations with equal slots have the
same valid completions, however they differ in their parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evotune.space.language.interning import Interner
from evotune.space.language.nodes import Literal, Name, Node, Operation

ASSOCIATIVE = frozenset({"and", "or", "min", "max"})


@dataclass(frozen=True, slots=True)
class Step:
    """What to compute when one more parameter becomes known.

    `checks` are conditions that must hold now; `slots` gives each new slot's name and the
    tree, over old slots and the parameter, that computes it. `prospects` are the conditions
    the parameter has brought closer to a decision, over new slots and unknown parameters.
    """

    checks: tuple[Node, ...]
    slots: tuple[tuple[Name, Node], ...]
    prospects: tuple[Node, ...]


def conjuncts(node: Node) -> Iterable[Node]:
    """The conditions that all have to hold for `node` to hold."""
    if isinstance(node, Operation) and node.operator == "and":
        for operand in node.operands:
            yield from conjuncts(operand)
    else:
        yield node


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
        """Advances past `parameter`."""
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
        if node not in self.done:
            self.done[node] = self._rewritten(node)
        return self.done[node]

    def _rewritten(self, node: Node) -> Node:
        if isinstance(node, Literal):
            return node
        names = self.interner.names(node)
        if names and names <= self.known:
            return self._slot(node)
        if isinstance(node, Name):
            return node
        operands = node.operands
        if node.operator in ASSOCIATIVE:
            operands = self._grouped(node.operator, operands)
        return self.interner.operation(node.operator, map(self.rewritten, operands))

    def _grouped(self, operator: str, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        """Leading known operands joined into one, so that they fill one slot.

        Only leading ones: `and` and `or` must not evaluate an operand before those that
        guard it.
        """
        count = 0
        for operand in operands:
            if not self.interner.names(operand) <= self.known:
                break
            count += 1
        # All of them are known where the node names nothing, as `3 * (1 // 0)`: nothing to join.
        if count < 2 or count == len(operands):
            return operands
        return (self.interner.operation(operator, operands[:count]), *operands[count:])

    def _slot(self, node: Node) -> Node:
        if node not in self.slots:
            slot = self.interner.name(f"#{self.layer}.{len(self.slots)}")
            assert isinstance(slot, Name)
            self.slots[node] = (slot, node)
        return self.slots[node][0]
