"""The hashes of code that the user agreed to run, kept from one process to the next.

They are in a file in the user's state folder, with a SHA-256 in hexadecimal on each line. Other
lines are ignored. A file that cannot be read or written is not an error: evotune then asks again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

_HASH = re.compile(r"[0-9a-f]{64}")


def read() -> frozenset[str]:
    path = _file()
    try:
        lines = path.read_text(errors="replace").splitlines() if path is not None else []
    except OSError:
        return frozenset()
    return frozenset(line for line in lines if _HASH.fullmatch(line))


def add(hashes: Iterable[str]) -> None:
    """Appends the hashes in one write, so that several processes may append at the same time."""
    path = _file()
    lines = "".join(f"{sha256}\n" for sha256 in hashes)
    if path is None or not lines:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, lines.encode())
        finally:
            os.close(handle)


def _file() -> Path | None:
    """The file's path: in $EVOTUNE_STATE_DIR, else in evotune/ under $XDG_STATE_HOME or
    ~/.local/state.

    None for a relative path, since it would lead to a file that came with the working folder.
    """
    folder = os.environ.get("EVOTUNE_STATE_DIR")
    if not folder:
        base = os.environ.get("XDG_STATE_HOME", "")
        base = base if os.path.isabs(base) else os.path.expanduser("~/.local/state")
        folder = os.path.join(base, "evotune")
    return Path(folder) / "agreed" if os.path.isabs(folder) else None
