"""Opens files that a user names. Only regular files: reading another kind can wait for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> BinaryIO:
    """The file, opened for reading. OSError when it is not a regular file or cannot be read.

    A file of another kind is not even opened: opening it can wait for ever, or rewind a tape.
    Another process may put one there after the check, so the file is opened without waiting.
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
    """The file's content, or the first `most_bytes` of a larger file. OSError as `open_regular`."""
    with open_regular(path) as file:
        return file.read() if most_bytes is None else file.read(most_bytes)


def require_regular(found: os.stat_result, path: Path) -> None:
    """OSError when what was found at the path is no regular file."""
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"expected a file, found {kind}", str(path))
