"""Interval arithmetic over columns, which finds rows in which a condition can no longer hold.

Bounds are float64 and rounded outwards where float64 is not exact. So a row is given up only
when no values of the unknown parameters make the condition true.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evotune.space.language.columns import Array, Column
from evotune.space.language.nodes import (
    EQUALITY,
    EXACT_FLOAT,
    LIMIT,
    ORDERING,
    Literal,
    Name,
    Node,
    Operation,
    post_order,
)
from evotune.trial import Value


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lowest and highest possible value, by row or for all rows; text is unbounded."""

    low: Array
    high: Array


UNBOUNDED = Bounds(np.array(-np.inf), np.array(np.inf))
_FAIL_ON_TEXT_ALONE = ORDERING | {"and", "or", "not"}
_FALSE_OR_TRUE = Bounds(np.array(0.0), np.array(1.0))


def bounds_of_values(values: Sequence[Value]) -> Bounds:
    """Bounds of a parameter whose value is not known yet."""
    if any(isinstance(value, str) for value in values):
        return UNBOUNDED
    return _outwards(np.array(float(min(values))), np.array(float(max(values))))


def bounds_of_column(column: Column) -> Bounds:
    """Bounds of known values: the values themselves; rows without a value are unbounded."""
    if column.values.dtype.kind not in "bif":
        return UNBOUNDED
    exact = column.values.astype(np.float64)
    bounds = _outwards(exact, exact)
    if column.failed is None:
        return bounds
    return Bounds(
        np.where(column.failed, -np.inf, bounds.low), np.where(column.failed, np.inf, bounds.high)
    )


def can_hold(condition: Node, known: Mapping[str, Bounds]) -> Array:
    """By row (or for all), whether the condition may hold for values within the bounds."""
    with np.errstate(all="ignore"):
        return _truth(_Intervals(known).bounds(condition)).high > 0


def may_fail(node: Node, known: Mapping[str, Bounds]) -> bool:
    """Whether some values within the bounds may leave the expression without a value."""
    with np.errstate(all="ignore"):
        intervals = _Intervals(known)
        intervals.bounds(node)
        return any(
            _may_fail(part.operator, [intervals.done[operand] for operand in part.operands], found)
            for part, found in intervals.done.items()
            if isinstance(part, Operation) and part.operator not in EQUALITY
        )


def _may_fail(operator: str, operands: Sequence[Bounds], found: Bounds) -> bool:
    if operator in _FAIL_ON_TEXT_ALONE:
        return any(map(_may_be_text, operands))
    if operator == "if":
        return _may_be_text(operands[0])
    if operator in ("/", "//", "%", "ceil_div"):
        divisor = operands[1]
        if ((divisor.low <= 0) & (divisor.high >= 0)).any():
            return True
    if operator == "log2":
        return bool((operands[0].low <= 0).any())
    if operator in ("**", "is_pow2"):  # these need integers, which bounds cannot show
        return True
    return bool(((found.low <= -LIMIT) | (found.high >= LIMIT)).any())


def _may_be_text(operand: Bounds) -> bool:
    return bool((np.isinf(operand.low) & np.isinf(operand.high)).any())


class _Intervals:
    def __init__(self, known: Mapping[str, Bounds]) -> None:
        self.known = known
        self.done: dict[Node, Bounds] = {}

    def bounds(self, node: Node) -> Bounds:
        for part in post_order(node, self.done):
            self.done[part] = self._bounds(part)
        return self.done[node]

    def _bounds(self, node: Node) -> Bounds:
        if isinstance(node, Literal):
            return bounds_of_values([node.value])
        if isinstance(node, Name):
            return self.known[node.name]
        operands = [self.done[operand] for operand in node.operands]
        rule = _RULES.get(node.operator)
        return UNBOUNDED if rule is None else rule(*operands)


def _outwards(low: Array, high: Array) -> Bounds:
    """Rounded outwards unless both ends are integers that float64 holds exactly."""
    exact = (np.abs(low) < EXACT_FLOAT) & (np.abs(high) < EXACT_FLOAT)
    exact &= (np.floor(low) == low) & (np.floor(high) == high)
    if exact.all():
        return Bounds(low, high)
    return Bounds(
        np.where(exact, low, np.nextafter(low, -np.inf)),
        np.where(exact, high, np.nextafter(high, np.inf)),
    )


def _hull(candidates: Sequence[Array]) -> Bounds:
    """Bounds of all candidates; unbounded where one of them is NaN (0 x inf)."""
    low = functools.reduce(np.minimum, candidates)
    high = functools.reduce(np.maximum, candidates)
    unknown = np.isnan(low) | np.isnan(high)
    return _outwards(np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high))


def _add(a: Bounds, b: Bounds) -> Bounds:
    return _hull([a.low + b.low, a.high + b.high])


def _negate(a: Bounds) -> Bounds:
    return Bounds(-a.high, -a.low)


def _multiply(a: Bounds, b: Bounds) -> Bounds:
    return _hull([a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high])


def _divide(a: Bounds, b: Bounds) -> Bounds:
    around_zero = (b.low <= 0) & (b.high >= 0)
    found = _hull([a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high])
    return Bounds(
        np.where(around_zero, -np.inf, found.low), np.where(around_zero, np.inf, found.high)
    )


def _floor_divide(a: Bounds, b: Bounds) -> Bounds:
    quotient = _divide(a, b)
    low, high = np.nextafter(quotient.low, -np.inf), np.nextafter(quotient.high, np.inf)
    return Bounds(np.floor(low), np.floor(high))


def _modulo(a: Bounds, b: Bounds) -> Bounds:
    small = (a.low >= 0) & (a.high < b.low)  # then a % b is a
    low = np.where(small, a.low, np.minimum(b.low, 0))
    high = np.where(small, a.high, np.maximum(b.high, 0))
    return Bounds(low, high)


def _power(a: Bounds, b: Bounds) -> Bounds:
    growing = (a.low >= 1) & (b.low >= 0)
    low, high = np.power(np.maximum(a.low, 1), b.low), np.power(np.maximum(a.high, 1), b.high)
    return Bounds(
        np.where(growing, np.nextafter(low, -np.inf), -np.inf),
        np.where(growing, np.nextafter(high, np.inf), np.inf),
    )


def _minimum(*operands: Bounds) -> Bounds:
    low = functools.reduce(np.minimum, [operand.low for operand in operands])
    return Bounds(low, functools.reduce(np.minimum, [operand.high for operand in operands]))


def _maximum(*operands: Bounds) -> Bounds:
    return _negate(_minimum(*map(_negate, operands)))


def _truth(a: Bounds) -> Bounds:
    never_zero = (a.low > 0) | (a.high < 0)
    always_zero = (a.low == 0) & (a.high == 0)
    return Bounds(never_zero.astype(np.float64), (~always_zero).astype(np.float64))


def _not(a: Bounds) -> Bounds:
    truth = _truth(a)
    return Bounds(1 - truth.high, 1 - truth.low)


def _and(*operands: Bounds) -> Bounds:
    return _minimum(*map(_truth, operands))


def _or(*operands: Bounds) -> Bounds:
    return _maximum(*map(_truth, operands))


def _if(condition: Bounds, then: Bounds, otherwise: Bounds) -> Bounds:
    truth = _truth(condition)
    may_then, may_otherwise = truth.high > 0, truth.low < 1
    low = np.minimum(
        np.where(may_then, then.low, np.inf), np.where(may_otherwise, otherwise.low, np.inf)
    )
    high = np.maximum(
        np.where(may_then, then.high, -np.inf), np.where(may_otherwise, otherwise.high, -np.inf)
    )
    return Bounds(low, high)


def _less(a: Bounds, b: Bounds) -> Bounds:
    return Bounds((a.high < b.low).astype(np.float64), (a.low < b.high).astype(np.float64))


def _less_equal(a: Bounds, b: Bounds) -> Bounds:
    return Bounds((a.high <= b.low).astype(np.float64), (a.low <= b.high).astype(np.float64))


def _equal(a: Bounds, b: Bounds) -> Bounds:
    same_point = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    overlap = (a.low <= b.high) & (b.low <= a.high)
    return Bounds(same_point.astype(np.float64), overlap.astype(np.float64))


_RULES: Mapping[str, Callable[..., Bounds]] = {
    "+": _add,
    "-": lambda a, b: _add(a, _negate(b)),
    "*": _multiply,
    "/": _divide,
    "//": _floor_divide,
    "%": _modulo,
    "**": _power,
    "neg": _negate,
    "abs": lambda a: Bounds(np.maximum(np.maximum(a.low, -a.high), 0), np.maximum(a.high, -a.low)),
    "min": _minimum,
    "max": _maximum,
    "ceil_div": lambda a, b: _negate(_floor_divide(_negate(a), b)),
    "is_pow2": lambda _: _FALSE_OR_TRUE,
    "not": _not,
    "and": _and,
    "or": _or,
    "if": _if,
    "<": _less,
    "<=": _less_equal,
    ">": lambda a, b: _less(b, a),
    ">=": lambda a, b: _less_equal(b, a),
    "==": _equal,
    "!=": lambda a, b: _not(_equal(a, b)),
}
