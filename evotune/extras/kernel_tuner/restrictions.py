"""A script's restrictions as conditions: texts, functions, and objects of python-constraint."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from evotune.extras.kernel_tuner.traced import (
    FunctionOfTunables,
    NotWritten,
    Tunables,
    text_of,
)

_MOST_ROWS = 200
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
}


class Constraint:
    """The base of the objects that stand in for those of python-constraint."""

    def __init__(self, limit: Any = None, *_: object, **__: object) -> None:
        self.limit = limit

    def texts(self, names: Sequence[str], tunables: Tunables) -> list[str]:
        raise NotWritten(f"{type(self).__name__} is not known")


class FunctionConstraint(Constraint):
    def texts(self, names: Sequence[str], tunables: Tunables) -> list[str]:
        function = self.limit
        chosen = {name: tunables[name] for name in names}
        return of_function(lambda given: function(*[given[name] for name in names]), chosen)


def _compared(name: str, sign: str, joined: str) -> type[Constraint]:
    def texts(self: Constraint, names: Sequence[str], tunables: Tunables) -> list[str]:
        return [f"{joined.join(names)} {sign} {text_of(self.limit)}"]

    return type(name, (Constraint,), {"texts": texts})


def _each(name: str, words: str) -> type[Constraint]:
    def texts(self: Constraint, names: Sequence[str], tunables: Tunables) -> list[str]:
        listed = ", ".join(text_of(value) for value in self.limit)
        return [f"{each} {words} ({listed},)" for each in names]

    return type(name, (Constraint,), {"texts": texts})


def _pairs(name: str, sign: str) -> type[Constraint]:
    def texts(self: Constraint, names: Sequence[str], tunables: Tunables) -> list[str]:
        pairs = itertools.combinations if sign == "!=" else lambda all, _: itertools.pairwise(all)
        return [f"{first} {sign} {second}" for first, second in pairs(names, 2)]

    return type(name, (Constraint,), {"texts": texts})


CONSTRAINTS: dict[str, type[Constraint]] = {
    made.__name__: made
    for made in (
        *(Constraint, FunctionConstraint),
        _compared("MaxProdConstraint", "<=", " * "),
        _compared("MinProdConstraint", ">=", " * "),
        _compared("ExactProdConstraint", "==", " * "),
        _compared("MaxSumConstraint", "<=", " + "),
        _compared("MinSumConstraint", ">=", " + "),
        _compared("ExactSumConstraint", "==", " + "),
        *(_each("InSetConstraint", "in"), _each("NotInSetConstraint", "not in")),
        *(_pairs("AllEqualConstraint", "=="), _pairs("AllDifferentConstraint", "!=")),
    )
}


def read_restrictions(found: object, tunables: Tunables) -> Iterator[str]:
    """The restrictions as conditions over the tunables. NotWritten, naming the restriction."""
    several = isinstance(found, list | tuple) and not _is_pair(found)
    items: Sequence[object] = found if several else [found]  # type: ignore[assignment]
    for number, item in enumerate(items, start=1):
        try:
            yield from _read(item, tunables)
        except NotWritten as reason:
            raise NotWritten(f"restriction {number} cannot be written: {reason}") from reason


def _read(item: object, tunables: Tunables) -> list[str]:
    names = list(tunables)
    if _is_pair(item):
        item, chosen = item[0], item[1]  # type: ignore[index]
        names = [str(name) for name in chosen]
        if unknown := [name for name in names if name not in tunables]:
            raise NotWritten(f"{unknown[0]} is not a tunable")
    if isinstance(item, str):
        return [item]
    if isinstance(item, Constraint):
        return item.texts(names, tunables)
    if callable(item):
        return of_function(item, {name: tunables[name] for name in names})
    raise NotWritten(f"it is a {type(item).__name__}, not a text or a function")


def _is_pair(found: object) -> bool:
    """Whether it is (restriction, names of tunables)."""
    return (
        isinstance(found, tuple)
        and len(found) in (2, 3)
        and callable(found[0]) | isinstance(found[0], Constraint)
        and isinstance(found[1], list | tuple)
    )


def of_function(function: Callable[..., Any], tunables: Tunables) -> list[str]:
    """The conditions that a function sets; none where it allows all."""
    known = FunctionOfTunables(function, tunables)
    allowed = [key for key, found in known.results.items() if found]
    if len(allowed) == len(known.results):
        return []
    if not allowed:
        raise NotWritten("it allows no configuration")
    try:
        return _conjuncts(known.of_paths())
    except NotWritten:
        if known.is_whole:
            return _table(known, allowed)
        words = f"it has {known.count} combinations of {', '.join(known.read)}"
        raise NotWritten(f"{words}, too many for a table; write it as text") from None


def _conjuncts(text: str) -> list[str]:
    """`a and b` as two conditions."""
    tree = _Plain().visit(ast.parse(text, mode="eval").body)
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return [part for value in tree.values for part in _conjuncts(ast.unparse(value))]
    return [ast.unparse(tree)]


class _Plain(ast.NodeTransformer):
    """Writes `a > b` for `not a <= b`."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        inner = node.operand
        if isinstance(node.op, ast.Not) and isinstance(inner, ast.Compare):
            opposite = _OPPOSITES.get(type(inner.ops[0]))
            if opposite is not None and len(inner.ops) == 1:
                return ast.Compare(inner.left, [opposite()], inner.comparators)
        return node


def _table(known: FunctionOfTunables, allowed: Sequence[tuple[Any, ...]]) -> list[str]:
    """A condition for each combination of all tunables but the last: which values the last has."""
    *_, last = known.read
    groups: dict[tuple[Any, ...], list[Any]] = {key[:-1]: [] for key in known.results}
    for key in allowed:
        groups[key[:-1]].append(key[-1])
    most = max(map(len, groups.values()))
    every = len({key[-1] for key in known.results})
    rows = []
    for group, values in groups.items():
        if len(values) == every and most == every:
            continue
        listed = f"{last} in ({', '.join(map(text_of, values))},)" if values else ""
        unless = f"not ({known.condition(group)})" if group else ""
        rows.append(" or ".join(filter(None, (unless, listed))))
    if len(rows) > _MOST_ROWS:
        words = f"its table would have {len(rows)} rows, more than {_MOST_ROWS}"
        raise NotWritten(f"{words}; write it as text over the tunables")
    return rows
