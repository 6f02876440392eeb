"""Tells a process that has no memory left from one with a bug. It imports next to nothing."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator

_ENVIRONMENT = 3
_LOADER_WORDS = ("failed to map segment", "cannot allocate memory")


def is_no_memory(error: BaseException) -> bool:
    """Whether the error comes from a lack of memory, also one that a package raised in its
    place: where a library cannot be loaded for that reason, Python raises ImportError."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or (isinstance(each, ImportError) and any(word in str(each) for word in _LOADER_WORDS))
        for each in _chain(error)
    )


def say_no_memory(error: BaseException) -> int:
    """Tells the user in one line; returns the exit code."""
    what = str(error).strip() if isinstance(error, MemoryError) else ""
    line = f"error: no memory is left{f': {what}' if what else ''}"
    print("".join(filter(str.isprintable, line)), file=sys.stderr)
    return _ENVIRONMENT


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
