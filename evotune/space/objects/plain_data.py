"""Turns Python values into the plain data of a space file: `plain`."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import TypeAlias

from evotune.space.reading.object_path import Data, DataPath
from evotune.space.reading.yaml_source import MAX_DEPTH, Position, check_number, check_text
from evotune.util.words import describe

Expression: TypeAlias = str | int | float | bool
"""Text in the expression language of space files, or a number."""


class Described(ABC):
    """An object that stands for a mapping of a space file."""

    @abstractmethod
    def to_data(self) -> Mapping[str, object]:
        """The mapping. A key whose value is None is left out, so that the file's default holds."""


def plain(value: object, path: DataPath, place: Callable[[DataPath], str]) -> Data:
    """The value as YAML would give it; SpaceError for a value that no file can hold.

    `path` leads to the value from the top of the space, and `place` names it in messages.
    """
    position = Position(place=place(path))
    if len(path) >= MAX_DEPTH:
        raise position.error(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Described):
        value = {key: item for key, item in value.to_data().items() if item is not None}
    if isinstance(value, Mapping):
        return _mapping(value, path, place)
    if isinstance(value, list | tuple | range):
        return [plain(item, (*path, i), place) for i, item in enumerate(value)]
    return _scalar(value, position)


def _scalar(value: object, position: Position) -> Data:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | PurePath):
        text = str(value) if isinstance(value, str) else value.as_posix()
        check_text(text, position)
        return text
    if isinstance(value, float):
        number: float = float(value)
    else:
        try:
            number = operator.index(value)  # type: ignore[arg-type]  # NumPy's integers have one
        except TypeError:
            expected = "expected a number, text, true, false, a list or a mapping"
            raise position.error(f"{expected}, found {describe(value)}") from None
    check_number(number, position)
    return number


def _mapping(
    value: Mapping[object, object], path: DataPath, place: Callable[[DataPath], str]
) -> dict[str, Data]:
    data: dict[str, Data] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            message = f"expected text as key, found {describe(key)}"
            raise Position(place=place(path)).error(message)
        check_text(key, Position(place=place(path)))
        data[str(key)] = plain(item, (*path, str(key)), place)
    return data
