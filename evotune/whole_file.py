"""Files that are written whole or not at all: half a report would be taken for a whole one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place at the end of the block; after an exception `path`
    is as it was before.

    A link stays, and its target is replaced. What cannot be replaced is written to at once: a pipe,
    a device, a file in a folder that takes no new one. OSError where that fails.
    """
    target = Path(os.path.realpath(path))
    aside = target.with_name(f".writing-{secrets.token_hex(8)}")
    try:
        mode = _mode(path)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError:
        with path.open("wb") as file:
            yield file
        return
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            yield file
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int | None:
    """The mode of the file at `path`, None where there is none. OSError for what is no file, or one
    that may not be written."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):  # opening a pipe waits for its reader
        raise OSError(errno.EINVAL, "no regular file", str(path))
    path.open("r+b").close()
    return stat.S_IMODE(found.st_mode)
