"""Finds the place of a value in a JSON text, only when there is a mistake to show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from evotune.errors import SpaceError

_BETWEEN = re.compile(r"[ \t\r\n,:]*")
_decode = json.JSONDecoder().raw_decode


class MisplacedError(SpaceError):
    """A mistake in a document, at the value that `path` leads to from the top or at an `offset`."""

    def __init__(self, message: str, *path: str | int, offset: int | None = None) -> None:
        super().__init__(message)
        self._path = path
        self._offset = offset

    def placed(self, text: str) -> SpaceError:
        """The error with its line and column in the document's text."""
        offset = place_of(text, self._path) if self._offset is None else self._offset
        before = text[:offset]
        column = offset - before.rfind("\n")
        return SpaceError(self.message, line=before.count("\n") + 1, column=column)


def place_of(text: str, path: Sequence[str | int]) -> int:
    """The offset of the key or item that `path` leads to. Where the text does not have it, the
    offset of the last step that it has."""
    offset = value = _after_blanks(text, 0)
    for step in path:
        found = None
        try:
            for name, place, begin in _members(text, value):
                if name == step:
                    found = place, begin  # the last of equal keys counts, as in JSON parsers
        except (ValueError, IndexError, RecursionError):
            pass  # the text is cut or damaged
        if found is None:
            return offset
        offset, value = found
    return offset


def _members(text: str, container: int) -> Iterator[tuple[str | int, int, int]]:
    """The name, offset and value's offset of each member of the object or array at `container`."""
    is_object = text[container] == "{"
    if not is_object and text[container] != "[":
        return
    at, number = _after_blanks(text, container + 1), 0
    while text[at] not in "]}":
        name: str | int = number
        begin = at
        if is_object:
            name, end = _decode(text, at)
            begin = _after_blanks(text, end)
        yield name, at, begin
        at, number = _after_blanks(text, _decode(text, begin)[1]), number + 1


def _after_blanks(text: str, offset: int) -> int:
    match = _BETWEEN.match(text, offset)
    return match.end() if match else offset
