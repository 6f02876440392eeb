"""Files that a mistake or Ctrl-C leaves as they were: half a report would pass for a whole one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place at the end of the block; after an exception `path`
    is as it was before.

    A link stays, and its target is replaced. What cannot be replaced is written to at once: a pipe,
    a device, what a process has open (/dev/stdout), a file in a folder that takes no new one. A
    mount point is written to at the end of the block. OSError where that fails.
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
    """A function that writes to the file, for lines that are of use even if more of them never
    follow. What was in the file stays until the first line, or until the block's end."""
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
    """Replaces `target` by `aside`, or writes to it where it stays, as a mount point does."""
    try:
        aside.replace(target)
    except OSError:
        with aside.open("rb") as file, target.open("wb") as to:
            shutil.copyfileobj(file, to)
        aside.unlink()


def _mode(path: Path, target: Path) -> int | None:
    """The mode of the file at `path`, None where there is none. OSError for what is no file, one
    that may not be written, and one that a process has open."""
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
