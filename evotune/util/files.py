"""Writes files that a mistake or Ctrl-C leaves unchanged, because half a report would look like a
whole one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file next to `path` that replaces it at the end of the block. After an exception `path` is
    unchanged.

    A link stays, and its target is replaced. What cannot be replaced is written to at once: a pipe,
    a device, what a process has open (/dev/stdout), a file in a folder that takes no new one. A
    mount point is written to at the end of the block. Raises OSError if that fails.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    aside = target.with_name(f".writing-{secrets.token_hex(8)}")
    try:
        mode = _mode(path, target)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError:
        with path.open("wb") as file:
            yield file
        return
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                with contextlib.suppress(OSError):  # some file systems have no modes
                    os.fchmod(handle, mode)
            yield file
        _put(aside, target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def growing_file(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Yields a function that appends to the file, for lines that are useful even if no more follow.
    The earlier content stays until the first line is written, or until the end of the block."""
    with path.open("ab") as file:
        before = stat.S_ISREG(os.fstat(file.fileno()).st_mode)

        def write(content: bytes) -> None:
            nonlocal before
            if before:
                file.truncate(0)
                before = False
            file.write(content)

        yield write
        write(b"")


def _put(aside: Path, target: Path) -> None:
    """Replaces `target` by `aside`, or writes into it if it cannot be replaced, such as a mount
    point."""
    try:
        aside.replace(target)
    except OSError:
        with aside.open("rb") as file, target.open("wb") as to:
            shutil.copyfileobj(file, to)
        aside.unlink()


def _mode(path: Path, target: Path) -> int | None:
    """The mode of the file at `path`, None if there is none. Raises OSError for what is no file,
    one that may not be written, and one that a process has open."""
    if path.absolute().parts[1:2] in (("dev",), ("proc",)):
        raise OSError(errno.EINVAL, "an open file", str(path))
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    # Opening a pipe waits for its reader. A link of the kernel's may lead to a deleted file.
    if not stat.S_ISREG(found.st_mode) or not os.path.samestat(found, target.stat()):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    path.open("r+b").close()
    return stat.S_IMODE(found.st_mode)


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> BinaryIO:
    """Opens the file for reading. Raises OSError if it is not a regular file or cannot be read. A
    file of another kind is not even opened, because opening it can block forever, or rewind a tape.
    Another process may replace the file after the check, so it is opened without blocking.
    """
    require_regular(os.stat(path), path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        require_regular(os.fstat(handle), path)
    except OSError:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def read_regular(path: Path, most_bytes: int | None = None) -> bytes:
    """The file's content, or the first `most_bytes` of a larger file. Raises the OSError of
    `open_regular`."""
    with open_regular(path) as file:
        return file.read() if most_bytes is None else file.read(most_bytes)


def require_regular(found: os.stat_result, path: Path) -> None:
    """Raises OSError unless `found`, the status of the path, is that of a regular file."""
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"expected a file, found {kind}", str(path))


# Temporary folders that are removed even if their process is killed.
#
# A killed process cannot remove its folder. So a process holds a lock (flock) on a file in its
# folder as long as it lives, and the next process that makes a folder removes each folder without a
# lock.
_PREFIX = "evotune-"
_LOCK = "owner.lock"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder under the system's temporary folder, empty except for a lock, which is removed at
    the end of the block."""
    _remove_abandoned()
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int]:
    """The folder and the descriptor that holds its lock until it is closed or the process ends."""
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


WORKER_FOLDER = "EVOTUNE_WORKER_FOLDER"
"""The environment variable that names the folder of a worker process. The worker's parent removes
it: a worker is killed, and cannot."""


def worker_folder() -> str | None:
    """This worker's folder; None in a process that is no worker."""
    return os.environ.get(WORKER_FOLDER)


def state_folder() -> Path | None:
    """The folder of the user's state: $EVOTUNE_STATE_DIR, else evotune/ under $XDG_STATE_HOME or
    ~/.local/state.

    None for a relative path, because it would lead to files that came with the working folder.
    """
    folder = os.environ.get("EVOTUNE_STATE_DIR")
    if not folder:
        base = os.environ.get("XDG_STATE_HOME", "")
        base = base if os.path.isabs(base) else os.path.expanduser("~/.local/state")
        folder = os.path.join(base, "evotune")
    return Path(folder) if os.path.isabs(folder) else None


def default_cache_dir() -> Path:
    """The folder of compiled kernels: $EVOTUNE_CACHE_DIR, else evotune/ under the user's cache
    folder."""
    chosen = os.environ.get("EVOTUNE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return Path(base) / "evotune"
