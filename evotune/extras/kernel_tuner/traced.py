"""What a script's functions of the tunables compute, as expressions. A function is called with
values that record each operation on them. Each decision on such a value (`if`, `and`, `or`, `not`,
`max`) starts a separate path. The function is called for all combinations of the tunables that it
reads, so every path is seen, or for many random combinations if there are too many. The expression
of a path must agree with the results of all its combinations. If it does not, the function cannot
be written as an expression, and a table of its results replaces it, provided that the table is
small.

A script's restrictions become conditions: texts, functions, and objects of python-constraint.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from evotune.extras.kernel_tuner.messages import TunableValue

MOST_COMBINATIONS = 20_000
_MOST_PATHS = 64
_MOST_CHARACTERS = 1500
_MOST_CHOICES = 24
_PROBES = 200

Tunables: TypeAlias = Mapping[str, Sequence[TunableValue]]
Combination: TypeAlias = Mapping[str, TunableValue]


class NotWritten(Exception):
    """A function cannot be written as an expression. The message says why."""


class Traced:
    """A value, how it is computed from tunables, and the decisions taken so far."""

    def __init__(self, value: Any, text: str, trail: list[tuple[str, bool]]) -> None:
        self.value = value
        self.text = text
        self.trail = trail
        self.quotient: tuple[str, str] | None = None

    def __bool__(self) -> bool:
        taken = bool(self.value)
        self.trail.append((self.text, taken))
        return taken

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __neg__(self) -> Traced:
        return type(self)(-self.value, f"(-{self.text})", self.trail)

    def __abs__(self) -> Traced:
        return type(self)(abs(self.value), f"abs({self.text})", self.trail)

    def __floor__(self) -> Traced:
        return self._of_quotient("({} // {})", math.floor(self.value))

    def __ceil__(self) -> Traced:
        return self._of_quotient("ceil_div({}, {})", math.ceil(self.value))

    def _of_quotient(self, words: str, value: int) -> Traced:
        if self.quotient is None:
            raise NotWritten("it rounds what is no quotient")
        return type(self)(value, words.format(*self.quotient), self.trail)

    __array_ufunc__ = None  # NumPy's scalars leave the operation to this class


def _operation(name: str, sign: str, *, swapped: bool = False) -> Callable[[Traced, Any], Any]:
    apply = getattr(operator, name)

    def method(self: Traced, other: Any) -> Any:
        if not isinstance(other, Traced | int | float | str | np.generic):
            return NotImplemented
        given = (other, self) if swapped else (self, other)
        first, second = (each.value if isinstance(each, Traced) else each for each in given)
        texts = [text_of(each) for each in given]
        made = type(self)(apply(first, second), f"({texts[0]} {sign} {texts[1]})", self.trail)
        if name == "truediv":
            made.quotient = (texts[0], texts[1])
        return made

    return method


for _name, _sign in {
    **{"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//"},
    **{"mod": "%", "pow": "**"},
}.items():
    setattr(Traced, f"__{_name}__", _operation(_name, _sign))
    setattr(Traced, f"__r{_name}__", _operation(_name, _sign, swapped=True))
for _name, _sign in {
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
}.items():
    setattr(Traced, f"__{_name}__", _operation(_name, _sign))


def text_of(value: Any) -> str:
    if isinstance(value, Traced):
        return value.text
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool | int | float):
        return repr(value)
    raise NotWritten(f"it returns a {type(value).__name__}")


class Given(dict[str, Any]):
    """A combination of tunables' values; `read` has the names that were asked for."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        return super().get(name, default)

    def items(self) -> Any:
        self._read.update(self)
        return super().items()

    def values(self) -> Any:
        self._read.update(self)
        return super().values()


def traced(values: Combination, trail: list[tuple[str, bool]], read: set[str]) -> Given:
    return Given({name: Traced(value, name, trail) for name, value in values.items()}, read)


def called(function: Callable[..., Any], tunables: Tunables) -> Callable[[Given], Any]:
    """A call of the function with a combination: as one mapping, or each value by its name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return function
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [each.name for each in parameters if each.kind in by_name]
    if names and all(name in tunables for name in names):
        return lambda given: function(**{name: given[name] for name in names})
    if not names and any(each.kind is each.VAR_KEYWORD for each in parameters):
        return lambda given: function(**{name: given[name] for name in given})
    return function


def combinations(tunables: Tunables, names: Sequence[str]) -> Iterator[dict[str, TunableValue]]:
    """All combinations of these tunables, the others at their first values."""
    first = {name: values[0] for name, values in tunables.items()}
    for values in itertools.product(*(tunables[name] for name in names)):
        yield {**first, **dict(zip(names, values, strict=True))}


def drawn(tunables: Tunables, count: int) -> Iterator[dict[str, TunableValue]]:
    draw = random.Random(0)
    for _ in range(count):
        yield {name: draw.choice(values) for name, values in tunables.items()}


class FunctionOfTunables:
    """A script's function, called for all combinations of the tunables that it reads.

    - read: the tunables that it reads
    - count: the number of their combinations
    - results: its results by combination: all, or those of `MOST_COMBINATIONS` random ones
    """

    def __init__(self, function: Callable[..., Any], tunables: Tunables) -> None:
        self._call = called(function, tunables)
        self._tunables = tunables
        read: set[str] = set()
        for values in drawn(tunables, _PROBES):
            self._call(Given(values, read))
        while True:
            self.read = [name for name in tunables if name in read]
            self.count = math.prod(len(tunables[name]) for name in self.read)
            self.results = {
                tuple(values[name] for name in self.read): _plain(self._call(Given(values, read)))
                for values in self._combinations()
            }
            if read <= set(self.read):
                break

    @property
    def is_whole(self) -> bool:
        """Whether `results` covers all combinations."""
        return self.count <= MOST_COMBINATIONS

    def _combinations(self) -> Iterator[dict[str, TunableValue]]:
        if not self.is_whole:
            return drawn(self._tunables, MOST_COMBINATIONS)
        return combinations(self._tunables, self.read)

    def expression(self, place: int | None = None) -> str:
        """The result as one expression; `place`: of a result that is a tuple, that item."""
        try:
            return self.of_paths(place)
        except NotWritten:
            return self._of_results(place)

    def of_paths(self, place: int | None = None) -> str:
        """The result as one expression, found by tracing the function's own branches. `place`: the
        item of a result that is a tuple. Raises NotWritten if tracing fails.
        """
        try:
            return self._traced(place)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            raise NotWritten(f"{type(error).__name__}: {error}") from error

    def _traced(self, place: int | None) -> str:
        paths: dict[tuple[tuple[str, bool], ...], str] = {}
        for values in self._combinations():
            trail: list[tuple[str, bool]] = []
            found = _item(self._call(traced(values, trail, set())), place)
            path = tuple(dict.fromkeys(trail))
            text = text_of(found)
            if paths.setdefault(path, text) != text or len(paths) > _MOST_PATHS:
                raise NotWritten("it does more than an expression can say")
        text = _merged(paths, 0)
        if len(text) > _MOST_CHARACTERS:
            raise NotWritten("it is too long for an expression")
        return text

    def _of_results(self, place: int | None) -> str:
        """A choice among the results, which are few."""
        if len(self.results) > _MOST_CHOICES or not self.is_whole:
            raise NotWritten("it computes in a way that no expression has, such as int() of a sum")
        texts = {key: text_of(_item(found, place)) for key, found in self.results.items()}
        *others, (_, last) = texts.items()
        for key, text in reversed(others):
            if text != last:
                last = f"({text} if {self.condition(key)} else {last})"
        return last

    def condition(self, key: Sequence[TunableValue]) -> str:
        pairs = zip(self.read, key, strict=False)
        return " and ".join(f"{name} == {text_of(value)}" for name, value in pairs) or "True"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _item(found: Any, place: int | None) -> Any:
    return found if place is None or not isinstance(found, tuple | list) else found[place]


def _merged(paths: Mapping[tuple[tuple[str, bool], ...], str], depth: int) -> str:
    """Paths that begin with the same `depth` decisions, as one expression."""
    if len(paths) == 1:
        ((path, text),) = paths.items()
        known = dict(path)
        return str(known[text]) if text in known else text
    condition = next((path[depth][0] for path in paths if len(path) > depth), "")
    if not all(len(path) > depth and path[depth][0] == condition for path in paths):
        raise NotWritten("it decides in a way that is not seen")
    sides = []
    for taken in (True, False):
        side = {path: text for path, text in paths.items() if path[depth][1] == taken}
        if not side:
            return _merged(paths, depth + 1)
        sides.append(_merged(side, depth + 1))
    return _decided(condition, *sides)


def _decided(condition: str, yes: str, no: str) -> str:
    """`yes if condition else no`, in the plainest words."""
    plain = {  # the last that fits
        (yes, "True"): f"(not {condition} or {yes})",
        (yes, "False"): f"({condition} and {yes})",
        ("True", no): f"({condition} or {no})",
        ("False", no): f"(not {condition} and {no})",
        ("True", "False"): condition,
        ("False", "True"): f"(not {condition})",
    }
    if yes == no:
        return yes
    return plain.get((yes, no)) or f"({yes} if {condition} else {no})"


_MOST_ROWS = 200
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
}


class Constraint:
    """The base of the objects that replace those of python-constraint."""

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
    """The conditions that a function sets; none if it allows everything."""
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
