"""Constraints of a Definition: conditions on its axes, written as Python expressions.

They are evaluated here, and never executed. Known are numbers, names of axes, `+ - * // %`,
comparisons, `and`, `or`, `not`, `min` and `max`. A condition with anything else, such as
`kv_indptr[-1] == num_pages`, is one on the tensors' values.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type, Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}


class _Unknown(Exception):
    """An expression that is not one of axes alone."""


@dataclass(frozen=True)
class AxisRelations:
    """What a Definition's constraints say. `derived`: axes as expressions of others, in an order in
    which they can be evaluated. `conditions`: those on axes. `names_in_values`: the names in
    conditions on the tensors' values."""

    derived: Mapping[str, str]
    conditions: tuple[str, ...]
    names_in_values: frozenset[str]

    @classmethod
    def of(
        cls, constraints: Sequence[str], axes: frozenset[str], free: frozenset[str]
    ) -> AxisRelations:
        """`free`: the axes that are not constant. Raises SyntaxError, whose text is the constraint,
        for one that is no expression."""
        derived: dict[str, str] = {}
        conditions: list[str] = []
        values: set[str] = set()
        for text in constraints:
            tree = parsed(text)
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            if not _is_of_axes(tree, axes):
                values |= names
            elif (found := _definition(tree, derived, free)) is not None:
                derived[found[0]] = found[1]
            else:
                conditions.append(text)
        return cls(_in_order(derived), tuple(conditions), frozenset(values))

    def whole(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """All axes: `sizes` and those that follow from them. Raises ValueError, one line, if a
        condition does not hold."""
        axes = dict(sizes)
        for name, text in self.derived.items():
            axes[name] = value_of(text, axes)
        for text in self.conditions:
            if not value_of(text, axes):
                raise ValueError(f"the constraint {text} does not hold")
        return axes


def parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(text) from error


def value_of(text: str, axes: Mapping[str, int]) -> int:
    """The value of an expression; 0 or 1 of a condition. Raises ValueError if it has none."""
    try:
        return _value(parsed(text), axes)
    except (_Unknown, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"{text} has no value") from error


def _is_of_axes(tree: ast.expr, axes: frozenset[str]) -> bool:
    try:
        _value(tree, dict.fromkeys(axes, 1))
    except (_Unknown, RecursionError):
        return False
    except ZeroDivisionError:
        pass
    return True


def _definition(
    tree: ast.expr, derived: Mapping[str, str], free: frozenset[str]
) -> tuple[str, str] | None:
    """The axis that an equation gives, and the expression of it; None if it gives none."""
    if not isinstance(tree, ast.Compare) or not isinstance(tree.ops[0], ast.Eq):
        return None
    if len(tree.ops) != 1:
        return None
    for one, other in ((tree.left, tree.comparators[0]), (tree.comparators[0], tree.left)):
        names = {node.id for node in ast.walk(other) if isinstance(node, ast.Name)}
        is_free = isinstance(one, ast.Name) and one.id in free - derived.keys()
        if isinstance(one, ast.Name) and is_free and not _leads_to(names, one.id, derived):
            return one.id, ast.unparse(other)
    return None


def _leads_to(names: set[str], wanted: str, derived: Mapping[str, str]) -> bool:
    """Whether one of the names depends on the wanted one."""
    seen: set[str] = set()
    while names - seen:
        name = (names - seen).pop()
        seen.add(name)
        if name == wanted:
            return True
        if name in derived:
            tree = parsed(derived[name])
            names = names | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return False


def _in_order(derived: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    while len(found) < len(derived):
        for name, text in derived.items():
            needed = {n.id for n in ast.walk(parsed(text)) if isinstance(n, ast.Name)}
            if name not in found and not (needed & derived.keys()) - found.keys():
                found[name] = text
    return found


def _value(node: ast.expr, axes: Mapping[str, int]) -> int:  # noqa: PLR0911 (a node each)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and node.id in axes:
        return axes[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_value(node.left, axes), _value(node.right, axes))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, axes)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return int(not _value(node.operand, axes))
    if isinstance(node, ast.BoolOp):
        each = [_value(value, axes) for value in node.values]
        return int(all(each) if isinstance(node.op, ast.And) else any(each))
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        values = [_value(each, axes) for each in (node.left, *node.comparators)]
        pairs = zip(node.ops, values, values[1:], strict=False)
        return int(all(_COMPARISONS[type(op)](one, other) for op, one, other in pairs))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        function = _FUNCTIONS.get(node.func.id)
        if function is not None and not node.keywords:
            return function(*(_value(each, axes) for each in node.args))
    raise _Unknown
