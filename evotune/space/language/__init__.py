"""The expression language of a space file: constraints, `when`, `let`, launch sizes.

A small closed language of integers, floats, booleans and identifiers. Every number x satisfies |x|
< 2**63. An operation with a larger result, or a division by zero, has no value. `nodes` has the
tree and evaluates it for one configuration, `columns` for many at once.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from evotune.errors import SpaceError
from evotune.space.language.columns import Array, Column, column_of, evaluate_columns
from evotune.space.language.nodes import (
    FUNCTIONS,
    LIMIT,
    Evaluate,
    EvaluationError,
    Literal,
    Name,
    Node,
    Operation,
    apply,
    compile_scalar,
    names_in,
    post_order,
)
from evotune.space.reading.yaml_source import Position
from evotune.trial import Value
from evotune.util.words import counted, did_you_mean


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression, its text and its position. Expressions are equal if their texts are."""

    text: str
    position: Position = field(compare=False)
    node: Node = field(compare=False, repr=False)
    closure: Evaluate = field(compare=False, repr=False)

    @property
    def names(self) -> tuple[Name, ...]:
        """Every use of a name, from left to right."""
        return tuple(names_in(self.node))

    def error(self, message: str, offset: int = 0) -> SpaceError:
        return self.position.error(message, offset)

    def evaluate(self, scope: Mapping[str, Value]) -> Value:
        """The expression's value, with the values of names from `scope`. Raises SpaceError if it
        has none."""
        self._require_names(scope)
        try:
            return self.closure(dict(scope))
        except EvaluationError as error:
            raise self.position.error(f"{error} in `{self.text}`") from error

    def evaluate_columns(self, scope: Mapping[str, Array]) -> tuple[Array, Array]:
        """The values of many rows at once, and a mask of the rows without a value. All arrays have
        the same length."""
        self._require_names(scope)
        rows = max((len(array) for array in scope.values()), default=1)
        known: dict[str, Column] = {}
        for name, array in scope.items():
            known[name] = column_of(array.tolist()) if array.dtype.kind == "O" else Column(array)
        column = evaluate_columns(self.node, known, rows)
        failed = np.zeros(rows, dtype=bool) if column.failed is None else column.failed
        return column.values, failed

    def _require_names(self, scope: Mapping[str, object]) -> None:
        for name in self.names:
            if name.name not in scope:
                hint = did_you_mean(name.name, scope)
                raise self.position.error(f"unknown name '{name.name}'{hint}", name.offset)


def parse_expression(text: Value, position: Position | None = None) -> Expression:
    """Parses `text`, which YAML may already have read as a number or boolean."""
    position = position or Position()
    words = str(text).lower() if isinstance(text, bool) else str(text)
    node = parse_node(words, position)
    return Expression(" ".join(words.split()), position, node, compile_scalar(node))


# Parses an expression's text into its tree, with Python's grammar but not its semantics.
# `ast` only splits the text; every node is then translated by an allow-list. Nothing is
# compiled or executed, and what is not listed here does not exist in the language.

MAX_LENGTH = 2000
MAX_DEPTH = 50
MAX_NODES = 4000  # chains and `in` repeat their operands, nested ones exponentially
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_WORDS = {"true": True, "false": False}
# One thread parses at a time, since all threads share the depth that Python's parser counts
# (CPython #106905: else a SystemError now and then, as in a cluster's workers) and the filters of
# warnings.
_one_thread = threading.Lock()
_FOREIGN = re.compile(r"[^\x20-\x7e]|[#\\;@`$?]")


def parse_node(text: str, position: Position) -> Node:
    """The tree of `text`. Raises SpaceError at the part that is not in the language."""
    if len(text) > MAX_LENGTH:
        raise position.error(f"an expression has at most {MAX_LENGTH} characters")
    flat = text.replace("\n", " ").replace("\t", " ")
    indent = len(flat) - len(flat.lstrip())
    flat = flat.strip()
    if not flat:
        raise position.error("expected an expression, found nothing")
    foreign = _FOREIGN.search(flat)
    if foreign:
        message = f"the character {foreign.group()!r} is not allowed in an expression"
        raise position.error(message, indent + foreign.start())
    try:
        with _one_thread, warnings.catch_warnings():
            warnings.simplefilter("error")  # `1if x` is a warning; here it is an error
            tree = ast.parse(flat, mode="eval")
    except SyntaxError as error:
        offset = error.offset - 1 if error.offset else len(flat)  # 0: the text ends too early
        unclosed = "never closed" in error.msg and position.inline
        hint = "; inside [ ] or { }, quote an expression with commas" if unclosed else ""
        raise position.error(f"not an expression: {error.msg}{hint}", indent + offset) from error
    except (ValueError, RecursionError, MemoryError, Warning) as error:
        raise position.error("an expression is nested at most 50 levels deep") from error
    translator = _Translator(position, indent)
    node = translator.translate(tree.body, 1)
    _refuse_constants_without_value(node, flat, position)
    return node


def _refuse_constants_without_value(node: Node, text: str, position: Position) -> None:
    """Raises SpaceError if an operation on numbers alone has no value, whatever the
    configuration."""
    values: dict[Node, Value | None] = {}  # None: not known here
    for part in post_order(node, values):
        values[part] = part.value if isinstance(part, Literal) else None
        if not isinstance(part, Operation):
            continue
        operands = [values[operand] for operand in part.operands]
        if all(isinstance(operand, int | float) for operand in operands):
            try:
                values[part] = apply(part, operands)
            except EvaluationError as error:
                raise position.error(f"{error} in `{text}`", part.offset) from error


class _Translator:
    def __init__(self, position: Position, indent: int) -> None:
        self.position = position
        self.indent = indent
        self.nodes = 0

    def translate(self, node: ast.expr, depth: int) -> Node:  # noqa: PLR0911
        if depth > MAX_DEPTH:
            raise self._refuse(node, f"an expression is nested at most {MAX_DEPTH} levels deep")
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self._refuse(node, "the expression is too large; split it with 'let'")
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.UnaryOp():
                return self._unary(node, depth)
            case ast.BinOp():
                return self._binary(node, depth)
            case ast.BoolOp():
                operator = "and" if isinstance(node.op, ast.And) else "or"
                return self._operation(operator, node, node.values, depth)
            case ast.Compare():
                return self._compare(node, depth)
            case ast.IfExp():
                return self._operation("if", node, [node.test, node.body, node.orelse], depth)
            case ast.Call():
                return self._call(node, depth)
        kind = type(node).__name__
        raise self._refuse(node, f"{kind} is not part of the expression language")

    def _refuse(self, node: ast.expr, message: str) -> Exception:
        return self.position.error(message, self._offset(node))

    def _offset(self, node: ast.expr) -> int:
        return self.indent + node.col_offset

    def _operation(
        self, operator: str, node: ast.expr, operands: list[ast.expr], depth: int
    ) -> Operation:
        nodes = tuple(self.translate(operand, depth + 1) for operand in operands)
        return Operation(operator, nodes, self._offset(node))

    def _constant(self, node: ast.Constant) -> Literal:
        value = node.value
        if isinstance(value, bool):
            return Literal(value)
        if isinstance(value, int | float):
            if not abs(value) < LIMIT:
                raise self._refuse(node, "numbers are below 2**63")
            return Literal(value)
        if isinstance(value, str) and IDENTIFIER.fullmatch(value):
            return Literal(value)
        raise self._refuse(node, "expected a number, true, false or an identifier")

    def _name(self, node: ast.Name) -> Node:
        if node.id in _WORDS:
            return Literal(_WORDS[node.id])
        if node.id in FUNCTIONS or node.id == "device":
            hint = "device.NAME" if node.id == "device" else f"{node.id}(…)"
            raise self._refuse(node, f"expected {hint}")
        return Name(node.id, self._offset(node))

    def _attribute(self, node: ast.Attribute) -> Name:
        if isinstance(node.value, ast.Name) and node.value.id == "device":
            return Name(f"device.{node.attr}", self._offset(node))
        raise self._refuse(node, "only device.NAME has a dot")

    def _unary(self, node: ast.UnaryOp, depth: int) -> Node:
        if isinstance(node.op, ast.USub):
            return self._operation("neg", node, [node.operand], depth)
        if isinstance(node.op, ast.Not):
            return self._operation("not", node, [node.operand], depth)
        raise self._refuse(node, "the only prefix operators are - and not")

    def _binary(self, node: ast.BinOp, depth: int) -> Node:
        operator = _BINARY.get(type(node.op))
        if operator is None:
            hint = " (use `and`, `or`)" if isinstance(node.op, ast.BitAnd | ast.BitOr) else ""
            raise self._refuse(node, f"expected one of + - * / // % **{hint}")
        return self._operation(operator, node, [node.left, node.right], depth)

    def _compare(self, node: ast.Compare, depth: int) -> Node:
        links: list[Node] = []
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            links.append(self._link(node, left, operator, right, depth))
            left = right
        return links[0] if len(links) == 1 else Operation("and", tuple(links), self._offset(node))

    def _link(
        self, node: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr, depth: int
    ) -> Node:
        if isinstance(operator, ast.In | ast.NotIn):
            member = self._membership(node, left, right, depth)
            if isinstance(operator, ast.In):
                return member
            return Operation("not", (member,), self._offset(node))
        name = _COMPARE.get(type(operator))
        if name is None:
            raise self._refuse(node, "expected one of == != < <= > >= in")
        return self._operation(name, node, [left, right], depth)

    def _membership(
        self, node: ast.Compare, left: ast.expr, right: ast.expr, depth: int
    ) -> Operation:
        if not isinstance(right, ast.Tuple | ast.List):
            raise self._refuse(right, "expected a list such as (1, 2) after `in`")
        if not right.elts:
            raise self._refuse(right, "expected at least one value in the list after `in`")
        offset = self._offset(node)
        matches = tuple(
            self._operation("==", node, [left, element], depth + 1) for element in right.elts
        )
        return Operation("or", matches, offset)

    def _call(self, node: ast.Call, depth: int) -> Operation:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            name = node.func.id if isinstance(node.func, ast.Name) else "this"
            raise self._refuse(node, f"'{name}' is not a function{did_you_mean(name, FUNCTIONS)}")
        fewest, most = FUNCTIONS[node.func.id]
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if node.keywords or starred or not fewest <= len(node.args) <= most:
            least = "" if fewest == most else "at least "
            wanted = least + counted(fewest, "plain argument")
            raise self._refuse(node, f"{node.func.id} takes {wanted}")
        return self._operation(node.func.id, node, node.args, depth)
