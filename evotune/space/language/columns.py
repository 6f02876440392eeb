"""Evaluates an expression on many configurations at once, as numpy columns and as intervals.

The results are exactly those of `compile_scalar` for each row. Where numpy's arithmetic could
differ from Python's (overflow, floats of large integers, mixed types), the rows are evaluated one
by one instead, each distinct combination once.

Interval arithmetic finds rows in which a condition can no longer hold. Bounds are float64, rounded
outwards where float64 is not exact. So a row is given up only if no values of the unknown
parameters make the condition true.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evotune.space.language.nodes import (
    ARITHMETIC,
    EQUALITY,
    EXACT_FLOAT,
    LIMIT,
    ORDERING,
    EvaluationError,
    Literal,
    Name,
    Node,
    Operation,
    compile_scalar,
    post_order,
)
from evotune.trial import Value

Array: TypeAlias = npt.NDArray[Any]
_LONGEST_TABLE = 4  # entries for each value
_POWERS_OF_TWO = np.array([1 << exponent for exponent in range(63)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Column:
    """One value for each row. `failed` is a mask of the rows without a value; None if all have one.

    `values` are bool, int64, float64, fixed-width text, or objects if types are mixed.
    """

    values: Array
    failed: Array | None = None

    def take(self, rows: Array) -> Column:
        return Column(self.values[rows], None if self.failed is None else self.failed[rows])


class _NeedsRows(Exception):
    """Raised if numpy may not give Python's result: then the rows are evaluated one by one."""


def column_of(values: Sequence[Value]) -> Column:
    """The values as a column of the narrowest fitting type."""
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and kinds <= {bool, int, float, str}:
        dtype = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}[kinds.pop()]
        return Column(np.array(values, dtype=dtype))
    mixed = np.empty(len(values), dtype=object)
    mixed[:] = values
    return Column(mixed)


def evaluate_columns(node: Node, known: Mapping[str, Column], rows: int) -> Column:
    """The expression's column. `known` has the columns of the names in it."""
    if rows == 0:
        return Column(np.empty(0, dtype=np.int64))
    try:
        column = _Vectorised(known).evaluate(node)
    except _NeedsRows:
        return _row_by_row(node, known, rows)
    failed = None if column.failed is None else np.broadcast_to(column.failed, rows)
    return Column(np.broadcast_to(column.values, rows), failed)


def codes(columns: Sequence[Column], rows: int) -> tuple[Array, int]:
    """A number for every row, such that two rows have equal numbers if and only if all their
    columns are equal; and the count of numbers."""
    combined, count = np.zeros(rows, dtype=np.int64), 1
    for column in columns:
        part, distinct = _codes_of(column.values)
        if column.failed is not None:  # rows without a value are all equal
            part, distinct = np.where(column.failed, distinct, part), distinct + 1
        combined, count = combined * distinct + part, count * distinct
        if count > 4 * rows:
            combined, count = _ranks(combined)
    return combined, count


def _codes_of(values: Array) -> tuple[Array, int]:
    if values.dtype.kind == "O":
        seen: dict[tuple[type, Value], int] = {}
        listed = [seen.setdefault((type(v), v), len(seen)) for v in values.tolist()]
        return np.array(listed, dtype=np.int64), len(seen)
    if values.dtype.kind == "b":
        return values.astype(np.int64), 2
    return _ranks(values)


def _ranks(values: Array) -> tuple[Array, int]:
    """For every value how many distinct ones are smaller; and how many distinct ones there are."""
    if values.dtype.kind == "i" and len(values):
        least = int(values.min())
        span = int(values.max()) - least + 1
        if span <= _LONGEST_TABLE * len(values):  # less work than sorting
            places = values - least
            present = np.zeros(span, dtype=np.bool_)
            present[places] = True
            ranks = np.cumsum(present) - 1
            return ranks[places], int(ranks[-1]) + 1
    distinct, inverse = np.unique(values, return_inverse=True)
    return inverse, len(distinct)


class _Row(dict[str, Value]):
    """One row's values; a name that is absent has failed."""

    def __missing__(self, name: str) -> Value:
        raise EvaluationError(f"'{name}' has no value")


def _row_by_row(node: Node, known: Mapping[str, Column], rows: int) -> Column:
    names = _names(node)
    code, _ = codes([known[name] for name in names], rows)
    _, firsts, inverse = np.unique(code, return_index=True, return_inverse=True)
    evaluate = compile_scalar(node)
    values: list[Value] = []
    failed: list[bool] = []
    for environment in _rows([(name, known[name].take(firsts)) for name in names], len(firsts)):
        try:
            values.append(evaluate(environment))
            failed.append(False)
        except EvaluationError:
            values.append(values[-1] if values else 0)
            failed.append(True)
    column = column_of(values).take(inverse)
    return Column(column.values, np.array(failed)[inverse] if any(failed) else None)


def _rows(columns: Sequence[tuple[str, Column]], count: int) -> Iterator[_Row]:
    plain = [
        (
            name,
            column.values.tolist(),
            [False] * count if column.failed is None else column.failed.tolist(),
        )
        for name, column in columns
    ]
    for row in range(count):
        yield _Row({name: values[row] for name, values, failed in plain if not failed[row]})


def _names(node: Node) -> list[str]:
    found: dict[str, None] = {}
    seen = {node}
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, Name):
            found[current.name] = None
        elif isinstance(current, Operation):
            fresh = [operand for operand in current.operands if operand not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return list(found)


class _Vectorised:
    def __init__(self, known: Mapping[str, Column]) -> None:
        self.known = known
        self.done: dict[Node, Column] = {}

    def evaluate(self, node: Node) -> Column:
        for part in post_order(node, self.done):
            self.done[part] = self._evaluate(part)
        return self.done[node]

    def _evaluate(self, node: Node) -> Column:
        if isinstance(node, Literal):
            return Column(column_of([node.value]).values[0:1])
        if isinstance(node, Name):
            return self.known[node.name]
        operands = [self.done[operand] for operand in node.operands]
        if any(operand.values.dtype.kind == "O" for operand in operands):
            raise _NeedsRows
        if node.operator in ("and", "or"):
            return _connective(operands, node.operator == "or")
        if node.operator == "if":
            return _choice(*operands)
        failed = functools.reduce(_either, (operand.failed for operand in operands))
        return _strict(node.operator, [operand.values for operand in operands], failed)


def _either(first: Array | None, second: Array | None) -> Array | None:
    if first is None:
        return second
    return first if second is None else first | second


def _truth(values: Array) -> Array:
    if values.dtype.kind == "U":
        raise _NeedsRows
    truth: Array = values if values.dtype.kind == "b" else values != 0
    return truth


def _connective(operands: list[Column], stop: bool) -> Column:
    """`and` or `or`: each row evaluates the next operand until one decides it or fails."""
    decided: Array = np.zeros(1, dtype=bool)
    failed: Array = np.zeros(1, dtype=bool)
    for operand in operands:
        going = ~(decided | failed)
        if operand.failed is not None:
            failed = failed | (going & operand.failed)
            going = going & ~operand.failed
        decided = decided | (going & (_truth(operand.values) == stop))
    return Column(decided if stop else ~decided, failed if failed.any() else None)


def _choice(condition: Column, then: Column, otherwise: Column) -> Column:
    if then.values.dtype.kind != otherwise.values.dtype.kind:
        raise _NeedsRows
    chosen = _truth(condition.values)
    values = np.where(chosen, then.values, otherwise.values)
    if condition.failed is None and then.failed is None and otherwise.failed is None:
        return Column(values)
    nowhere = np.zeros(1, dtype=bool)
    then_failed = nowhere if then.failed is None else then.failed
    otherwise_failed = nowhere if otherwise.failed is None else otherwise.failed
    branch = np.where(chosen, then_failed, otherwise_failed)
    return Column(values, _either(condition.failed, branch))


def _strict(operator: str, values: list[Array], failed: Array | None) -> Column:
    if operator in EQUALITY:
        return Column(_equality(operator, *values), failed)
    if any(array.dtype.kind == "U" for array in values):
        raise _NeedsRows
    return _numeric(operator, values, failed)


def _numeric(operator: str, values: list[Array], failed: Array | None) -> Column:
    if operator == "not":
        return Column(~_truth(values[0]), failed)
    values = [array.astype(np.int64) if array.dtype.kind == "b" else array for array in values]
    if operator in ORDERING:
        _require_exact_mixing(values)
        return Column(_COMPARE[operator](*values), failed)
    if operator in ("min", "max"):
        choose = np.minimum if operator == "min" else np.maximum
        if len({array.dtype.kind for array in values}) > 1:
            raise _NeedsRows
        return Column(functools.reduce(choose, values), failed)
    if operator in ("+", "-", "*", "neg", "abs"):
        return Column(_ring(operator, values), failed)
    if operator in ARITHMETIC or operator == "ceil_div":
        return _division(operator, values, failed)
    return _bits(operator, values[0], failed)


_COMPARE: Mapping[str, Callable[[Array, Array], Array]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def _equality(operator: str, left: Array, right: Array) -> Array:
    if (left.dtype.kind == "U") != (right.dtype.kind == "U"):
        shape = np.broadcast_shapes(left.shape, right.shape)
        return np.full(shape, operator == "!=")
    _require_exact_mixing([left, right])
    return _COMPARE[operator](left, right)


def _magnitude(values: Array) -> int:
    return max(int(values.max()), -int(values.min()))


def _require_exact_mixing(values: list[Array]) -> None:
    """Integers that meet floats must be exact as floats."""
    kinds = {array.dtype.kind for array in values}
    if "f" not in kinds or kinds == {"f"}:
        return
    if any(array.dtype.kind == "i" and _magnitude(array) >= EXACT_FLOAT for array in values):
        raise _NeedsRows


def _ring(operator: str, values: list[Array]) -> Array:
    if operator in ("neg", "abs"):
        return -values[0] if operator == "neg" else np.abs(values[0])
    _require_exact_mixing(values)
    magnitudes = [_magnitude(array) for array in values]
    largest = magnitudes[0] * magnitudes[1] if operator == "*" else sum(magnitudes)
    if largest >= LIMIT // 2:
        raise _NeedsRows
    left, right = values
    if operator == "*":
        product: Array = left * right
        return product
    return left + right if operator == "+" else left - right


def _division(operator: str, values: list[Array], failed: Array | None) -> Column:
    left, right = values
    if left.dtype.kind == "f" or right.dtype.kind == "f" or operator == "**":
        raise _NeedsRows
    zero = right == 0
    if zero.any():
        right = np.where(zero, 1, right)
        failed = _either(failed, zero)
    if operator == "/":
        if _magnitude(left) >= EXACT_FLOAT or _magnitude(right) >= EXACT_FLOAT:
            raise _NeedsRows
        return Column(left / right, failed)
    if operator == "%":
        return Column(left % right, failed)
    return Column(left // right if operator == "//" else -(-left // right), failed)


def _bits(operator: str, values: Array, failed: Array | None) -> Column:
    if values.dtype.kind == "f":
        raise _NeedsRows
    if operator == "is_pow2":
        return Column((values > 0) & (values & (values - 1) == 0), failed)
    exponent = np.searchsorted(_POWERS_OF_TWO, values, side="right") - 1
    bad = exponent < 0
    return Column(exponent.astype(np.int64), _either(failed, bad) if bad.any() else failed)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lowest and the highest possible value, for each row or for all rows. Text is
    unbounded."""

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
    """Whether the condition may hold for values within the bounds, for each row or for all rows."""
    with np.errstate(all="ignore"):
        return _truth_bounds(_Intervals(known).bounds(condition)).high > 0


def may_fail(node: Node, known: Mapping[str, Bounds]) -> bool:
    """Whether the expression may have no value for some values within the bounds."""
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
    """Bounds of all candidates; unbounded if one of them is NaN (0 x inf)."""
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


def _truth_bounds(a: Bounds) -> Bounds:
    never_zero = (a.low > 0) | (a.high < 0)
    always_zero = (a.low == 0) & (a.high == 0)
    return Bounds(never_zero.astype(np.float64), (~always_zero).astype(np.float64))


def _not(a: Bounds) -> Bounds:
    truth = _truth_bounds(a)
    return Bounds(1 - truth.high, 1 - truth.low)


def _and(*operands: Bounds) -> Bounds:
    return _minimum(*map(_truth_bounds, operands))


def _or(*operands: Bounds) -> Bounds:
    return _maximum(*map(_truth_bounds, operands))


def _if(condition: Bounds, then: Bounds, otherwise: Bounds) -> Bounds:
    truth = _truth_bounds(condition)
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
