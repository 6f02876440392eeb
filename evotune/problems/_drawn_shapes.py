"""Random shapes, kept for the next time: one process makes the plan of a confirmation for a run,
for its export and for each package's check, and drawing takes most of the time of a plan."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

Size = TypeVar("Size")

_MOST_STREAMS = 64
"""So many streams of about a hundred shapes each are kept."""


class _Stream(Generic[Size]):
    """The shapes of an iterator without end, by their number. Any thread may ask."""

    def __init__(self, drawn: Iterator[dict[str, Size]]) -> None:
        self._drawn = drawn
        self._shapes: list[dict[str, Size]] = []
        self._drawing = threading.Lock()

    def shape(self, number: int) -> dict[str, Size]:
        """A copy, which the caller may change."""
        with self._drawing:
            while number >= len(self._shapes):
                self._shapes.append(next(self._drawn))
        return dict(self._shapes[number])


_streams: OrderedDict[Hashable, _Stream[Any]] = OrderedDict()
_using = threading.Lock()


def drawn_once(
    key: Hashable, draw: Callable[[], Iterator[dict[str, Size]]]
) -> Iterator[dict[str, Size]]:
    """The shapes that `draw` gives, without end. With an equal `key` it must give equal ones."""
    with _using:
        stream = _streams.pop(key, None)
        if stream is None:
            stream = _Stream(draw())
        _streams[key] = stream
        if len(_streams) > _MOST_STREAMS:
            _streams.popitem(last=False)
    return map(stream.shape, itertools.count())


def key_of(*values: Mapping[str, Any] | Hashable) -> Hashable:
    """A key of mappings and other values."""
    return tuple(tuple(v.items()) if isinstance(v, Mapping) else v for v in values)
