"""The seal of a store without a writer: the SHA-256 of its file, as `sha256sum -c` reads it.

A reader that finds the seal unbroken knows that no byte has changed since, and need not check row
by row. A store without a seal (its writer was killed, or is still at work) or with a
broken one is checked in full: see `evotune.store.verification`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from evotune.regular_file import read_regular

_MOST_BYTES = 1000


def is_sealed(store: Path) -> bool:
    """True if the file has the bytes that its last writer left."""
    try:
        text = read_regular(_seal_of(store), _MOST_BYTES).decode()
        return not _has_log(store) and text == _line(store)
    except (OSError, ValueError):
        return False


def make_seal(store: Path) -> None:
    """Write the seal, after the store is closed. Where that fails, readers take longer."""
    if _has_log(store):  # a reader held it open: part of the store is in the log
        return
    with contextlib.suppress(OSError):
        unfinished = store.with_suffix(".sha256.new")
        unfinished.write_text(_line(store))
        os.replace(unfinished, _seal_of(store))


def break_seal(store: Path) -> None:
    """Remove the seal; a writer does so before it changes anything."""
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
