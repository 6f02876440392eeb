"""Numbers, conditions and divisors of a script as expressions of a space, of Python and of C."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping

from evotune.cli.kernel_tuner.values import (
    Dotted,
    Function,
    Leaf,
    Number,
    Operation,
    Text,
    Tree,
    Value,
)
from evotune.errors import SpaceError
from evotune.space.language.expression import parse_expression
from evotune.space.reading.yaml_source import Position

_OPERATORS: dict[str, type[ast.operator]] = {
    **{"+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv},
    **{"%": ast.Mod, "**": ast.Pow},
}
_FUNCTIONS = ("min", "max", "abs")
_SAME = ("int", "round")  # leave an integer as it is, and every tunable is one
_PLAIN = (
    *(ast.Constant, ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Tuple),
    *(ast.List, ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


class NotWritten(Exception):
    """The script's code cannot be written as an expression. The message says why."""


NamesOf = Callable[[str], ast.expr | None]
"""Gives the expression that replaces a name of the script; None for an unknown name."""


def tree_node(tree: Tree, name_of: Callable[[Leaf], str | None]) -> ast.expr:
    """The tree as an expression over the names of its leaves. A part of it without a name is
    written as its value."""
    if not has_names(tree, name_of):
        return ast.Constant(tree if isinstance(tree, int | float) else tree.value)
    if isinstance(tree, Leaf):
        return ast.Name(str(name_of(tree)), ast.Load())
    assert isinstance(tree, Operation)
    if tree.operator == "?":
        raise NotWritten("how the number is computed cannot be written as an expression")
    operands = [tree_node(part, name_of) for part in tree.operands]
    factors = [part for part in operands if not _is_one(part)]
    if tree.operator == "*" and len(factors) == 1:
        return factors[0]
    if tree.operator in _OPERATORS:
        return ast.BinOp(operands[0], _OPERATORS[tree.operator](), operands[1])
    return ast.Call(ast.Name(tree.operator, ast.Load()), operands, [])


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def has_names(tree: Tree, name_of: Callable[[Leaf], str | None]) -> bool:
    if isinstance(tree, Leaf):
        return name_of(tree) is not None
    return isinstance(tree, Operation) and any(has_names(p, name_of) for p in tree.operands)


def unparsed(node: ast.expr) -> str:
    return ast.unparse(ast.fix_missing_locations(node))


def python_text(node: ast.expr) -> str:
    """The expression as Python, which has no `ceil_div`: it is written as `-(-a // b)`."""
    return unparsed(_CeilDiv().visit(ast.fix_missing_locations(node)))


class _CeilDiv(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "ceil_div":
            first, second = node.args
            negated = ast.BinOp(ast.UnaryOp(ast.USub(), first), ast.FloorDiv(), second)
            return ast.UnaryOp(ast.USub(), negated)
        return node


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
    """An expression that the script has as text, over its tunables."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotWritten("it is not an expression") from error
    return _translated(tree.body, names)


def from_function(function: Function, names: NamesOf) -> ast.expr:
    """The expression that a function of the tunables returns: `lambda p: ...`. NotWritten when the
    function does more than that."""
    node = function.node
    body: ast.expr | None
    if isinstance(node, ast.Lambda):
        body = node.body
    else:
        statements = [each for each in node.body if not _is_text(each)]
        only = statements[0] if len(statements) == 1 else None
        body = only.value if isinstance(only, ast.Return) else None
    parameters = [part.arg for part in node.args.args]
    if body is None:
        raise NotWritten("the function does more than return an expression")
    if len(parameters) == 1 and names(parameters[0]) is None:
        body = _Subscripts(parameters[0]).visit(body)
    elif any(names(parameter) is None for parameter in parameters):
        raise NotWritten("the function takes arguments other than tunables")
    seen = function.names

    def known(name: str) -> ast.expr | None:
        found = names(name)
        value: Value | None = seen.get(name)
        if found is None and isinstance(value, Number):
            return ast.Constant(value.value)
        return found

    return _translated(body, known, seen)


def expression_of(
    value: Value, number: Callable[[Number], ast.expr], names: NamesOf
) -> ast.expr | None:
    """The expression that a number, a text or a function of the script stands for; None for any
    other value."""
    match value:
        case Number():
            return number(value)
        case Text() if not value.file:
            return from_text(value.text, names)
        case Function():
            return from_function(value, names)
    return None


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class _Subscripts(ast.NodeTransformer):
    """Replaces `p["block_size_x"]` by `block_size_x`."""

    def __init__(self, parameter: str) -> None:
        self._parameter = parameter

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        key = node.slice
        mine = isinstance(node.value, ast.Name) and node.value.id == self._parameter
        if mine and isinstance(key, ast.Constant) and isinstance(key.value, str):
            return ast.Name(key.value, ast.Load())
        return node


def _translated(
    node: ast.expr, names: NamesOf, seen: Mapping[str, Value] | None = None, depth: int = 0
) -> ast.expr:
    if depth > 50:
        raise NotWritten("it is nested too deep")

    def inner(part: ast.expr) -> ast.expr:
        return _translated(part, names, seen, depth + 1)

    if isinstance(node, ast.Name):
        found = names(node.id)
        if found is None:
            raise NotWritten(f"{node.id} is not a tunable")
        return found
    if isinstance(node, ast.Call):
        return _call(node, [inner(part) for part in node.args], seen or {})
    if not isinstance(node, _PLAIN):
        raise NotWritten(f"`{ast.unparse(node)[:60]}` is not in the language of constraints")
    made = copy.copy(node)
    for name, part in ast.iter_fields(node):
        setattr(made, name, _part(part, inner))
    return made


def _part(part: object, inner: Callable[[ast.expr], ast.expr]) -> object:
    if isinstance(part, list):
        return [_part(one, inner) for one in part]
    return inner(part) if isinstance(part, ast.expr) else part


def _call(node: ast.Call, arguments: list[ast.expr], seen: Mapping[str, Value]) -> ast.expr:
    name = ast.unparse(node.func)
    if isinstance(node.func, ast.Name) and isinstance(known := seen.get(name), Dotted):
        name = known.path
    short = name.rpartition(".")[2]
    if not node.keywords and name in _SAME and len(arguments) == 1:
        (only,) = arguments
        if name == "int" and isinstance(only, ast.BinOp) and isinstance(only.op, ast.Div):
            return ast.BinOp(only.left, ast.FloorDiv(), only.right)
        if not any(map(_makes_fractions, ast.walk(only))):
            return only
    if not node.keywords and short == "ceil" and len(arguments) == 1:
        (only,) = arguments
        if isinstance(only, ast.BinOp) and isinstance(only.op, ast.Div):
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
