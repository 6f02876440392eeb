"""Reads cases to tune for: a list in YAML or JSON, or the miss log of an exported package.

An entry of a list has the symbols of a shape and of a variant in one mapping, as in `{batch: 1,
heads: 8, seq_len: 512, head_dim: 64, causal: true, count: 3}`. An entry of a miss log has them
separately, under `shape` and `variant`. Both may name a `dtype`. A recording (`evotune record`) is
a miss log whose entries also name the `problem` and have, under `call`, the facts of a call that no
case has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from evotune.errors import SpaceError
from evotune.space.reading.yaml_source import (
    MAX_BYTES,
    Data,
    DataPath,
    Position,
    YamlSource,
    check_number,
    check_text,
    parse_yaml,
    read_text,
)
from evotune.trial import Value
from evotune.util.words import describe

_MOST_BYTES = 1 << 24
_MOST_COUNT = 2**53
_LOGGED = ("shape", "variant", "dtype", "kind", "count", "problem", "call")
_BESIDE_SYMBOLS = ("count", "dtype")


@dataclass(frozen=True, slots=True)
class CaseEntry:
    """An entry of a file of cases.

    - `symbols`: the symbols of a shape and a variant together; the problem knows which is which.
    - `shape`, `variant`: the same symbols separately, in an entry of a miss log.
    - `dtype`: None if the entry names none. `count`: the weight of the case.
    - `problem`: None if the entry names none. `call`: facts of a recorded call.
    - `position`: the entry's position.
    - `places`: the position of each symbol.
    """

    symbols: Mapping[str, Value] = field(default_factory=dict)
    shape: Mapping[str, Value] = field(default_factory=dict)
    variant: Mapping[str, Value] = field(default_factory=dict)
    dtype: str | None = None
    count: float = 1
    position: Position = field(default_factory=Position)
    places: Mapping[str, Position] = field(default_factory=dict)
    problem: str | None = None
    call: Mapping[str, Data] = field(default_factory=dict)

    @property
    def logged(self) -> bool:
        """Whether a program wrote the entry, so that it may be a case that no problem has."""
        return bool(self.shape)

    def at(self, name: str) -> Position:
        return self.places.get(name, self.position)


def read_cases(path: Path) -> list[CaseEntry]:
    """The entries of a file. Raises SpaceError for the first mistake, with file, line and column,
    or with the path of the value in JSON."""
    text = read_text(path, _MOST_BYTES, "the file of cases")
    return _entries(_source(text, path))


def given_cases(cases: Sequence[Mapping[str, Value]]) -> list[CaseEntry]:
    """The entries of a Python list. Errors name `cases[NUMBER]`."""
    return _entries(_plain_source("cases", cases))


def _source(text: str, path: Path) -> YamlSource:
    """A miss log may be too long for the reader of YAML, and JSON is read in no time."""
    file = str(path)
    if text.lstrip()[:1] not in ("[", "{"):
        return _yaml(text, file)
    try:
        data = json.loads(text, object_pairs_hook=_pairs, parse_constant=_not_finite)
    except RecursionError as error:
        raise SpaceError("nested too deeply", file=file) from error
    except json.JSONDecodeError as error:
        if path.suffix.lower() != ".json":
            return _yaml(text, file)
        message = f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        raise SpaceError(message, file=file, line=error.lineno, column=error.colno) from error
    except ValueError as error:  # a key that is there twice, infinity, a number of too many digits
        raise SpaceError(f"not valid JSON: {error}", file=file) from error
    return _plain_source(file, data)


def _yaml(text: str, file: str) -> YamlSource:
    if len(text.encode()) > MAX_BYTES:
        raise SpaceError("a file of cases in YAML is at most 1 MiB; write JSON", file=file)
    return parse_yaml(text, file)


def _pairs(pairs: list[tuple[str, Data]]) -> dict[str, Data]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return found


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"expected a finite number, found {text}")


def _plain_source(name: str, data: object) -> YamlSource:
    """Data whose positions are paths such as `cases.json[3].heads`."""
    source = YamlSource(name, "", data)  # type: ignore[arg-type]  # `_entries` checks it

    def note(path: DataPath, place: str, value: object, depth: int) -> None:
        source.values[path] = Position(place=place)
        if depth == 0:
            return
        if isinstance(value, list | tuple):
            for number, item in enumerate(value):
                note((*path, number), f"{place}[{number}]", item, depth - 1)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                note((*path, key), f"{place}.{key}", item, depth - 1)

    note((), name, data, 3)
    return source


def _entries(source: YamlSource) -> list[CaseEntry]:
    data = source.data
    if not isinstance(data, list | tuple):
        expected = "a list of cases such as {batch: 1, heads: 8, causal: true}"
        raise source.position(()).error(f"expected {expected}, found {describe(data)}")
    if not data:
        raise source.position(()).error("the list of cases is empty")
    return [_entry(source, number, item) for number, item in enumerate(data)]


def _entry(source: YamlSource, number: int, item: object) -> CaseEntry:
    path: DataPath = (number,)
    position = source.position(path)
    if not isinstance(item, Mapping):
        raise position.error(f"expected a case, a mapping of symbols, found {describe(item)}")
    dtype = _name(source, path, item, "dtype")
    count = _count(item.get("count", 1), source.position((*path, "count")))
    if "shape" not in item:
        names = [name for name in item if name not in _BESIDE_SYMBOLS]
        symbols, places = _symbols(source, path, {name: item[name] for name in names})
        if not symbols:
            raise position.error("the case has no symbol")
        return CaseEntry(symbols, {}, {}, dtype, count, position, places)
    for name in item:
        if name not in _LOGGED:
            expected = ", ".join(_LOGGED)
            raise source.position((*path, name)).error(
                f"unknown key '{name}' next to a shape; expected {expected}"
            )
    apart = {}
    all_places: dict[str, Position] = {}
    for name in ("shape", "variant"):
        inside = item.get(name, {})
        if not isinstance(inside, Mapping):
            found = describe(inside)
            raise source.position((*path, name)).error(f"expected a mapping, found {found}")
        apart[name], own = _symbols(source, (*path, name), inside)
        all_places |= own
    if not apart["shape"]:
        raise position.error("the shape is empty")
    call = item.get("call", {})
    if not isinstance(call, Mapping):
        at = source.position((*path, "call"))
        raise at.error(f"expected a mapping, found {describe(call)}")
    return CaseEntry(
        {},
        apart["shape"],
        apart["variant"],
        dtype,
        count,
        position,
        all_places,
        _name(source, path, item, "problem"),
        call,
    )


def _name(source: YamlSource, path: DataPath, item: Mapping[str, Any], key: str) -> str | None:
    """The text under a key; None where the entry lacks it."""
    found = item.get(key)
    if found is not None and not isinstance(found, str):
        raise source.position((*path, key)).error(f"expected a {key}, found {describe(found)}")
    return found


def _symbols(
    source: YamlSource, path: DataPath, given: Mapping[str, object]
) -> tuple[dict[str, Value], dict[str, Position]]:
    found: dict[str, Value] = {}
    places: dict[str, Position] = {}
    for name, value in given.items():
        position = places[name] = source.position((*path, name))
        if not isinstance(name, str):
            raise position.error(f"expected text as key, found {describe(name)}")
        if not isinstance(value, bool | int | float | str):
            raise position.error(f"expected a number, true, false or a name for {name}, found "
                                 f"{describe(value)}")  # fmt: skip
        if isinstance(value, str):
            check_text(value, position)
        elif not isinstance(value, bool):
            check_number(value, position)
        found[name] = value
    return found, places


def _count(value: object, position: Position) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= _MOST_COUNT:  # type: ignore[operator]
        raise position.error(f"expected count to be a positive number, found {describe(value)}")
    return value  # type: ignore[return-value]
