"""Temporary folders that are removed even if their process is killed.

A killed process cannot remove its folder. So a process holds a lock (flock) on a file in its folder
as long as it lives, and the next process that makes a folder removes each folder without a lock.
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
    """A folder, empty but for the lock, under the system's temporary one; removed at the end."""
    _remove_abandoned()
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int]:
    """The folder and its lock's descriptor, which holds the lock until it is closed or the process
    ends."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / _LOCK).exists():
            return path, lock
        os.close(lock)  # before the lock was held, another process took the folder for abandoned


@functools.cache
def _remove_abandoned() -> None:
    """Removes abandoned folders, once in a process. Leaves other users' folders and those without a
    lock alone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # the folder is gone, locked, or another user's
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
