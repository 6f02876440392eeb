"""An expression as JSON: how an exported package stores what depends on the case.

number, true, false, "text"       a literal
{"name": "seq_len_q"}             a symbol of the case, or a `let`
["+", operand, operand]           an operation of `evotune.space.language.nodes`
"""

from __future__ import annotations

from evotune.space.language.nodes import Literal, Name, Node
from evotune.trial import Json


def to_json(node: Node) -> Json:
    """The tree as JSON. It is no deeper than the text of one expression."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Name):
        return {"name": node.name}
    return [node.operator, *map(to_json, node.operands)]
