"""The seal of a closed store: the SHA-256 of its file, in a file that `sha256sum -c` reads.

A reader that finds the seal unbroken knows that no byte has changed since, and need not check row
by row. A store without a seal (its writer was killed, or is still at work) or with a broken one is
checked in full: see `evotune.store.verification`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from evotune.regular_file import read_regular

_MOST_BYTES = 1000


def is_sealed(store: Path) -> bool:
    """Whether the file still has the bytes that its last writer left."""
    try:
        text = read_regular(_seal_of(store), _MOST_BYTES).decode()
        return not _has_log(store) and text == _line(store)
    except (OSError, ValueError):
        return False


def make_seal(store: Path) -> None:
    """Writes the seal after the store was closed. If that fails, readers only take longer."""
    if _has_log(store):  # a reader holds the store open, so part of it is still in the log
        return
    with contextlib.suppress(OSError):
        unfinished = store.with_suffix(".sha256.new")
        unfinished.write_text(_line(store))
        os.replace(unfinished, _seal_of(store))


def break_seal(store: Path) -> None:
    """Removes the seal, as a writer does before it changes anything."""
    _seal_of(store).unlink(missing_ok=True)


def _seal_of(store: Path) -> Path:
    return store.with_suffix(".sha256")


def _has_log(store: Path) -> bool:
    try:
        return os.path.getsize(f"{store}-wal") > 0
    except FileNotFoundError:
        return False


def _line(store: Path) -> str:
    with store.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {store.name}\n"
