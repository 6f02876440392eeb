"""Evaluates the expressions of `dispatch.json`.

An expression is a number, a bool or a text; `{"name": NAME}`; or `[OPERATOR, OPERAND, ...]`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

LIMIT = 2**63  # every number x satisfies |x| < LIMIT
MOST_EXPONENT = 64


class NoValue(Exception):
    """Raised if an expression has no value: a division by zero, an overflow, text used as a
    number."""


def whole(number: Any) -> Any:
    """The number as an integer. A number that a compiler leaves open is returned unchanged."""
    return int(number) if isinstance(number, int | float) else number


def solved(expression: Any, value: Any) -> tuple[str, Any] | None:
    """The only name in the expression, and the value of that name for which the expression has this
    value. None unless the expression is a name, or a sum, a difference or a product of one and a
    number.
    """
    if isinstance(expression, dict):
        return expression["name"], value
    if not isinstance(expression, list) or len(expression) != 3:
        return None
    operation, left, right = expression
    if type(left) is int and operation in ("+", "*"):
        left, right = right, left
    if type(right) is not int:
        return None
    if operation == "+":
        return solved(left, value - right)
    if operation == "-":
        return solved(left, value + right)
    return solved(left, value // right) if operation == "*" and right else None


class Names(dict[str, Any]):
    """Values by name. `lets` are expressions over these and other names; each is evaluated once, on
    first use."""

    def __init__(self, values: Mapping[str, Any], lets: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._lets = lets

    def __missing__(self, name: str) -> Any:
        if name not in self._lets:
            raise NoValue(f"nothing has the name {name}")
        value = self[name] = evaluate(self._lets[name], self)
        return value


def evaluate(expression: Any, names: Mapping[str, Any]) -> Any:
    """The expression's value. Raises NoValue if it has none. `and`, `or`, `if` evaluate only the
    operands that they need."""
    try:
        return _evaluated(expression, names)
    except RecursionError:
        raise NoValue("the expression is nested too deeply") from None


def _evaluated(expression: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(expression, dict):
        return names[expression["name"]]
    if not isinstance(expression, list):
        return expression
    name, *operands = expression
    if name in ("and", "or"):
        stop = name == "or"
        return stop if any(_truth(_evaluated(o, names)) is stop for o in operands) else not stop
    if name == "if":
        condition, then, otherwise = operands
        return _evaluated(then if _truth(_evaluated(condition, names)) else otherwise, names)
    return _OPERATORS[name](*(_evaluated(operand, names) for operand in operands))


def _bounded(number: Any) -> Any:
    if not isinstance(number, int | float):  # a compiler leaves it open: it would note a comparison
        return number
    if -LIMIT < number < LIMIT:
        return number
    raise NoValue("the result is 2**63 or more")


def _number(value: Any) -> Any:
    if isinstance(value, str):
        raise NoValue(f"'{value}' is not a number")
    return value


def _truth(value: Any) -> bool:
    return bool(_number(value))


def _numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: _bounded(function(_number(a), _number(b)))


def _compared(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(_number(a), _number(b))


def _quotient(function: Callable[..., Any]) -> Callable[..., Any]:
    def divide(a: Any, b: Any) -> Any:
        if _number(b) == 0:
            raise NoValue("division by zero")
        try:
            return _bounded(function(_number(a), b))
        except OverflowError:
            raise NoValue("the result is 2**63 or more") from None

    return divide


def _power(a: Any, b: Any) -> Any:
    if isinstance(b, (str, float)) or not 0 <= b <= MOST_EXPONENT:
        raise NoValue(f"an exponent is an integer from 0 to {MOST_EXPONENT}")
    try:
        return _bounded(_number(a) ** b)
    except OverflowError:
        raise NoValue("the result is 2**63 or more") from None


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    """min or max of numbers that first get one type, so that the winner's type is fixed."""

    def extreme(*arguments: Any) -> Any:
        kind = float if any(isinstance(argument, float) for argument in arguments) else int
        return choose([kind(_number(argument)) for argument in arguments])

    return extreme


def _log2(a: Any) -> int:
    if _number(a) <= 0:
        raise NoValue("log2 takes a positive number")
    return math.frexp(a)[1] - 1 if isinstance(a, float) else int(a).bit_length() - 1


def _is_pow2(a: Any) -> bool:
    if isinstance(a, (str, float)):
        raise NoValue("is_pow2 takes an integer")
    return a > 0 and int(a) & (int(a) - 1) == 0


_FLOOR_DIVIDE = _quotient(operator.floordiv)
_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": _numbers(operator.add),
    "-": _numbers(operator.sub),
    "*": _numbers(operator.mul),
    "/": _quotient(operator.truediv),
    "//": _FLOOR_DIVIDE,
    "%": _quotient(operator.mod),
    "**": _power,
    "==": operator.eq,
    "!=": operator.ne,
    "<": _compared(operator.lt),
    "<=": _compared(operator.le),
    ">": _compared(operator.gt),
    ">=": _compared(operator.ge),
    "neg": lambda a: -_number(a),
    "not": lambda a: not _truth(a),
    "abs": lambda a: abs(_number(a)),
    "min": _extreme(min),
    "max": _extreme(max),
    "ceil_div": lambda a, b: -_FLOOR_DIVIDE(-_number(a), b),
    "log2": _log2,
    "is_pow2": _is_pow2,
}
