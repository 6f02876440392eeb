"""Expressions of a script as expressions of a space, and of C."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import cast

from evotune.errors import SpaceError
from evotune.extras.kernel_tuner.traced import NotWritten
from evotune.space.language.expression import parse_expression
from evotune.space.reading.yaml_source import Position

_FUNCTIONS = ("min", "max", "abs", "ceil_div")
_SAME = ("int", "round")  # leave an integer as it is, and every tunable is one
NamesOf = Callable[[str], ast.expr | None]
"""Gives the expression that replaces a name of the script; None for an unknown name."""


def unparsed(node: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(node))


def c_text(node: ast.expr) -> str:
    """The expression as C; NotWritten when C has no operator for a part of it."""
    match node:
        case ast.Constant() if type(node.value) is int:
            return str(node.value)
        case ast.Name():
            return node.id
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.Mod()):
            sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"}
            first, second = c_text(node.left), c_text(node.right)
            return f"({first} {sign[type(node.op)]} {second})"
        case ast.Call(func=ast.Name("ceil_div")):
            first, second = map(c_text, node.args)
            return f"(({first} + {second} - 1) / {second})"
    raise NotWritten("C has no operator for it")


def from_text(text: str, names: NamesOf) -> ast.expr:
    """An expression that the script has as text, over its tunables. What no space has stays in it,
    for `checked` to refuse."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return cast(ast.expr, _Translated(names).visit(tree.body))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotWritten("it is not an expression") from error


def whole_number(node: ast.expr) -> ast.expr:
    """The expression with the int() that Kernel Tuner puts around it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return ast.BinOp(node.left, ast.FloorDiv(), node.right)
    return node


class _Translated(ast.NodeTransformer):
    """Gives the names and functions of a script those of a space."""

    def __init__(self, names: NamesOf) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self._names(node.id)
        if found is None:
            raise NotWritten(f"{node.id} is not a tunable")
        return found

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = ast.unparse(node.func)
        arguments: list[ast.expr] = [self.visit(part) for part in node.args]
        only = arguments[0] if len(arguments) == 1 and not node.keywords else None
        is_quotient = isinstance(only, ast.BinOp) and isinstance(only.op, ast.Div)
        if only is not None and name in _SAME:
            if is_quotient and name == "int":
                return whole_number(only)
            if not any(map(_makes_fractions, ast.walk(only))):
                return only
        if is_quotient and name.rpartition(".")[2] == "ceil":
            assert isinstance(only, ast.BinOp)
            return ast.Call(ast.Name("ceil_div", ast.Load()), [only.left, only.right], [])
        if not node.keywords and name in _FUNCTIONS:
            return ast.Call(ast.Name(name, ast.Load()), arguments, [])
        raise NotWritten(f"{name[:60]}() is not in the language of constraints")


def _makes_fractions(node: ast.AST) -> bool:
    return isinstance(node, ast.Div) or (
        isinstance(node, ast.Constant) and isinstance(node.value, float)
    )


def as_condition(node: ast.expr) -> ast.expr:
    """Adds `!= 0` to each number that stands as a condition: Python allows that, a space does
    not."""
    match node:
        case ast.BoolOp():
            return ast.BoolOp(node.op, [as_condition(part) for part in node.values])
        case ast.UnaryOp(op=ast.Not()):
            return ast.UnaryOp(node.op, as_condition(node.operand))
        case ast.IfExp():
            return ast.IfExp(
                as_condition(node.test), as_condition(node.body), as_condition(node.orelse)
            )
        case ast.Compare() | ast.Constant(value=bool()):
            return node
    return ast.Compare(node, [ast.NotEq()], [ast.Constant(0)])


def checked(node: ast.expr) -> str:
    """The expression's text; NotWritten when a space's own parser refuses it."""
    text = unparsed(node)
    try:
        parse_expression(text, Position())
    except SpaceError as error:
        raise NotWritten(error.message) from error
    return text
