"""What a script's functions of the tunables compute, as expressions.

A function is called with values that write down what is done with them. Each decision that it
takes on one of them (`if`, `and`, `or`, `not`, `max`) starts a path of its own. It is called for
all combinations of the tunables that it reads, so that every path is seen, or for many random ones
where there are too many. Each path's expression must be that of all its combinations; else the
function cannot be written, and a table of its results takes its place where it is small.
"""

from __future__ import annotations

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
        """Whether `results` has all combinations."""
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
        """The same, if the function's own steps say it."""
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
