"""Finds the case of a call: solves the shapes of the inputs for the problem's sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from ._case_expressions import Names, NoValue, evaluate, solved

Shapes = Mapping[str, tuple[int, ...]]
_STEPS = (1, 2, 3)


class CaseSizes:
    """Solves the shapes of `dispatch.json` for its sizes."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        given = description["cases_from"]
        self.sizes: list[str] = list(given["sizes"])
        self.constants: Mapping[str, Any] = given.get("constants", {})
        self.ranged: list[str] = list(given.get("ranges", {}))
        """The constants that a shape of the space may set."""
        self.flags: Mapping[str, list[str]] = given.get("flags", {})
        """The inputs whose presence implies each flag."""
        told = [flag for flag, tensors in self.flags.items() if not tensors]
        self.options: list[str] = [*self.sizes, *self.ranged, *told]
        """The names that a call may pass in addition to tensors."""
        self.tuned: list[Mapping[str, Any]] = given["tuned"]
        """The symbols of the timed cases, without the dtype."""
        self._dtype = description["problem"]["dtype"]
        inputs = description["problem"]["inputs"]
        self._shapes = {name: description["shapes"][name] for name in inputs}

    def symbols(self, shapes: Shapes, options: Mapping[str, Any]) -> dict[str, Any]:
        """The symbols of the one case whose inputs have these shapes; inputs that the call lacks
        have none. `options` give sizes, constants and flags that no input shows; sizes and flags
        that neither shapes nor options give are those of the timed cases. Raises ValueError, one
        line, if no case fits, or several do."""
        for name in options:
            if name not in self.options:
                known = ", ".join(self.options)
                raise ValueError(f"unknown name {name!r}; known in addition to tensors: {known}")
            _require_number(name, options[name], name in self.sizes)
        fits: list[dict[str, int]] = []
        for like in self.tuned:
            start = {name: int(options.get(name, like[name])) for name in self.sizes}
            unknown = [name for name in self.sizes if name not in options]
            sizes = self._solved(shapes, unknown, start)
            found = self._shapes_of(sizes).items()
            fit = {name: shape for name, shape in found if name in shapes} == dict(shapes)
            if fit and sizes not in fits:
                fits.append(sizes)
        if len(fits) != 1:
            words = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            names = ", ".join(self.sizes)
            if fits:
                raise ValueError(
                    f"several sizes fit the inputs' shapes ({words}): give {names} by name"
                )
            known = self._inputs_text()
            raise ValueError(f"the inputs' shapes are {words}, the kernels take {known}")
        constants = {name: options.get(name, value) for name, value in self.constants.items()}
        return {**fits[0], **self._flags_of(shapes, options), **constants, "dtype": self._dtype}

    def open_symbols(
        self, shapes: Mapping[str, tuple[Any, ...]], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The symbols of a case whose inputs have extents that a compiler leaves open. Open extents
        are compared with nothing. Only an extent that is one size plus a number determines a size.
        Sizes that neither extents nor options give, and on which timed cases differ, are missing.
        """
        found: dict[str, Any] = {}
        for name, shape in shapes.items():
            expected = self._shapes[name]
            if len(shape) != len(expected):
                raise ValueError(f"{name} must be {shape_text(expected)}")
            for known in filter(None, map(solved, expected, shape)):
                size, value = known
                if size not in found or isinstance(value, int):
                    found[size] = value
        for size in self.sizes:
            values = {like[size] for like in self.tuned}
            if size not in found and (size in options or len(values) == 1):
                found[size] = options[size] if size in options else values.pop()
        constants = {name: options.get(name, value) for name, value in self.constants.items()}
        return {**found, **self._flags_of(shapes, options), **constants, "dtype": self._dtype}

    def _inputs_text(self) -> str:
        """The inputs with their shapes in sizes, as in `x (rows, columns)`."""
        return ", ".join(f"{name} {shape_text(shape)}" for name, shape in self._shapes.items())

    def _flags_of(self, shapes: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, bool]:
        found = {}
        for flag, tensors in self.flags.items():
            given = {name in shapes for name in tensors}
            if not tensors:
                given = {bool(options[flag])} if flag in options else self._tuned_values(flag)
            if len(given) != 1:
                missing = (
                    f"all or none of {', '.join(tensors)}" if tensors else f"{flag}=True or False"
                )
                raise ValueError(f"a call must give {missing}")
            found[flag] = given.pop()
        return found

    def _tuned_values(self, flag: str) -> set[bool]:
        return {bool(like[flag]) for like in self.tuned}

    def _shapes_of(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Empty if some extent has no value."""
        names = Names(sizes, {})
        try:
            return {
                name: tuple(int(evaluate(extent, names)) for extent in shape)
                for name, shape in self._shapes.items()
            }
        except NoValue:
            return {}

    def _solved(
        self, wanted: Shapes, unknown: Iterable[str], start: Mapping[str, int]
    ) -> dict[str, int]:
        """An extent that depends linearly on one unknown size alone determines it; with that known,
        others may follow. Sizes that nothing determines keep their value in `start`."""
        sizes, left = dict(start), sorted(unknown)
        while left:
            found = self._determined(wanted, sizes, left)
            if found is None:
                break
            name, sizes[name] = found
            left.remove(name)
        return sizes

    def _determined(
        self, wanted: Shapes, sizes: dict[str, int], left: Iterable[str]
    ) -> tuple[str, int] | None:
        before = _extents(self._shapes_of(sizes))
        lines = {
            name: [
                _extents(self._shapes_of({**sizes, name: sizes[name] + step})) for step in _STEPS
            ]
            for name in left
        }
        for place, extent in _extents(wanted).items():
            moving = [
                n for n, after in lines.items() if any(_differs(a, before, place) for a in after)
            ]
            if len(moving) != 1 or place not in before:
                continue
            name, base = moving[0], before[place]
            slope = lines[name][0].get(place, 0) - base
            straight = all(
                after.get(place) == base + slope * step
                for step, after in zip(_STEPS, lines[name], strict=True)
            )
            if straight and slope and not (extent - base) % slope:
                value = sizes[name] + (extent - base) // slope
                if value >= 1:
                    return name, value
        return None


def _require_number(name: str, value: Any, is_size: bool) -> None:
    """Raises ValueError, one line, for a number that is in no case. A number that a compiler leaves
    open has none of Python's types."""
    if isinstance(value, Real) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}")
    if is_size and int(value) != value:
        raise ValueError(f"{name} must be an integer, got {value}")


def shape_text(extents: Iterable[Any]) -> str:
    """The shape of a tensor of `dispatch.json`, as in `(rows, 2 * columns)`."""
    return f"({', '.join(_text(extent) for extent in extents)})"


def _text(extent: Any) -> str:
    if isinstance(extent, Mapping):
        return str(extent["name"])
    if isinstance(extent, list):
        operator, *operands = extent
        texts = [_text(operand) for operand in operands]
        if operator != "+":
            nested = [isinstance(operand, list) for operand in operands]
            texts = [f"({t})" if inner else t for t, inner in zip(texts, nested, strict=True)]
        return f" {operator} ".join(texts)
    return str(extent)


def _differs(after: Mapping[Any, int], before: Mapping[Any, int], place: Any) -> bool:
    return after.get(place) != before.get(place)


def _extents(shapes: Shapes) -> dict[tuple[str, int], int]:
    return {
        (name, axis): extent for name, shape in shapes.items() for axis, extent in enumerate(shape)
    }
