"""Arithmetic on the numbers of a script. It is bounded: no result is large or takes long."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from evotune.cli.kernel_tuner.values import LIMIT, Number, Operation, Tree, constant, size_of

_MOST_PARTS = 100
_OPERATIONS: dict[str, Callable[..., int | float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}


class NoNumber(Exception):
    """An operation has no result. The message says why."""


def combine(name: str, *numbers: Number) -> Number:
    """The operation's value and tree; NoNumber when it has no value or one that is too large."""
    values = [number.value for number in numbers]
    if name == "**":
        value = _power(*values)
    else:
        try:
            value = _OPERATIONS[name](*values)
        except (ArithmeticError, ValueError) as error:
            raise NoNumber(str(error)) from error
    return _made(value, name, numbers)


def opaque(value: int | float, numbers: Sequence[Number]) -> Number:
    """A value that depends on the numbers in a way that is not kept: its tree says `?`."""
    return _made(value, "?", numbers)


def negative(number: Number) -> Number:
    return combine("-", constant(0), number)


def integer(number: Number, dtype: str = "") -> Number:
    """The number as Python's `int` makes it."""
    value, tree = number.value, number.tree
    if isinstance(value, float):
        value = _checked(int(value) if math.isfinite(value) else value)
        if isinstance(tree, Operation) and tree.operator == "/" and value >= 0:
            tree = Operation("//", tree.operands, value)
        elif number.is_constant:
            tree = value
        elif not (isinstance(tree, Operation) and tree.operator == "ceil_div"):
            tree = Operation("?", (tree,), value)
    return Number(int(value), tree, dtype)


def floating(number: Number, dtype: str = "") -> Number:
    """The number as Python's `float` makes it. Its tree stays, so that `int(a / b)` is still known
    as a division."""
    value = float(number.value)
    return Number(value, value if number.is_constant else number.tree, dtype)


def ceiling(number: Number) -> Number:
    if isinstance(number.value, float) and math.isfinite(number.value):
        value = _checked(math.ceil(number.value))
        tree = number.tree
        if isinstance(tree, Operation) and tree.operator == "/":
            return Number(value, Operation("ceil_div", tree.operands, value))
        return opaque(value, [number])
    return number


def product(numbers: Sequence[Number]) -> Number:
    made = constant(1)
    for number in numbers:
        made = number if made.tree == 1 else combine("*", made, number)
    return made


def total(numbers: Sequence[Number]) -> Number:
    made = constant(0)
    for number in numbers:
        made = number if made.tree == 0 else combine("+", made, number)
    return made


def _made(value: int | float, name: str, numbers: Sequence[Number]) -> Number:
    value = _checked(value)
    if all(number.is_constant for number in numbers):
        return constant(value)
    tree: Tree = Operation(name, tuple(number.tree for number in numbers), value)
    if size_of(tree) > _MOST_PARTS:
        raise NoNumber("too many operations in a row")
    return Number(value, tree)


def _checked(value: int | float) -> int | float:
    if isinstance(value, complex) or not math.isfinite(value) or abs(value) >= LIMIT:
        raise NoNumber("the number is too large")
    return int(value) if isinstance(value, bool) else value


def _power(base: int | float, exponent: int | float) -> int | float:
    if abs(exponent) > 64:
        raise NoNumber("the exponent is too large")
    try:
        found = base**exponent
    except ArithmeticError as error:
        raise NoNumber(str(error)) from error
    if isinstance(found, complex):
        raise NoNumber("the number is not real")
    return found
