"""Temporary folders that outlive no owner for long.

An owner that is killed cannot remove its folder. So it holds a lock (flock) on a file in the
folder as long as it lives, and whoever makes the next folder removes those that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "evotune-"
_LOCK = "owner.lock"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder (but for the lock) under the system's temporary one, removed at the end."""
    _remove_abandoned()
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int]:
    """The folder and its lock, which is held until it is closed or the process ends."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / _LOCK).exists():
            return path, lock
        os.close(lock)  # another process held it for a moment, took it for abandoned and removed it


@functools.cache
def _remove_abandoned() -> None:
    """Once a process. Folders of other users, and what has no lock, are left alone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it goes away, or belongs to somebody else
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
