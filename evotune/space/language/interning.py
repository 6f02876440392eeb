"""Makes expression trees unique: equal subtrees become one node, and constants are folded.

So a subtree that many constraints, lets or shapes share is stored, compared and evaluated
once, and equality of expressions is identity of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from evotune.space.language.nodes import EvaluationError, Literal, Name, Node, Operation
from evotune.space.language.scalar import apply, truth
from evotune.trial import Value


class Interner:
    """Makes nodes; equal arguments give the same node."""

    def __init__(self) -> None:
        self._nodes: dict[object, Node] = {}
        self._names: dict[Node, frozenset[str]] = {}
        self._failures: dict[Node, str] = {}

    def names(self, node: Node) -> frozenset[str]:
        """The names the node depends on."""
        return self._names[node]

    def failure(self, node: Node) -> str:
        """Why the node has no value, whatever its names stand for; "" if it may have one."""
        waiting, seen = [node], set[Node]()
        while waiting:
            part = waiting.pop()
            if part in self._failures:
                return self._failures[part]
            if part in seen or not isinstance(part, Operation):
                continue
            seen.add(part)
            first_decides = part.operator in ("and", "or", "if")
            waiting.extend(part.operands[:1] if first_decides else part.operands)
        return ""

    def literal(self, value: Value) -> Node:
        return self._intern((type(value), value), Literal(value), frozenset())

    def name(self, name: str) -> Node:
        return self._intern(("name", name), Name(name), frozenset((name,)))

    def operation(self, operator: str, operands: Iterable[Node]) -> Node:
        """The operation on interned operands, folded as far as literals allow."""
        nodes = tuple(operands)
        if operator in ("and", "or"):
            nodes = _needed(nodes, stop=operator == "or")
            if not nodes:
                return self.literal(operator == "and")
        if operator == "if" and isinstance(nodes[0], Literal) and not _is_text(nodes[0]):
            return nodes[1] if truth(nodes[0].value) else nodes[2]
        node = Operation(operator, nodes)
        failure = ""
        values = [operand.value for operand in nodes if isinstance(operand, Literal)]
        if len(values) == len(nodes):
            try:
                return self.literal(apply(node, values))
            except EvaluationError as error:  # evaluating the node raises it again
                failure = str(error)
        names = frozenset[str]().union(*(self._names[operand] for operand in nodes))
        interned = self._intern((operator, *map(id, nodes)), node, names)
        if failure:
            self._failures[interned] = failure
        return interned

    def _intern(self, key: object, node: Node, names: frozenset[str]) -> Node:
        known = self._nodes.setdefault(key, node)
        if known is node:
            self._names[node] = names
        return known


def _is_text(node: Literal) -> bool:
    return isinstance(node.value, str)


def _needed(nodes: tuple[Node, ...], stop: bool) -> tuple[Node, ...]:
    """The operands of a connective that can matter."""
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Literal) and not _is_text(node):
            if truth(node.value) is stop:
                kept.append(node)
                break
            continue
        kept.append(node)
    return tuple(kept)
