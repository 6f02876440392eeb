"""Lets one run at a time measure on a GPU: two would disturb each other's measurements."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from types import TracebackType

from evotune.errors import RunLocked

FOLDER = Path("/tmp")
"""The same folder for every user, whatever TMPDIR is, since all users share the GPU."""
_MODE = 0o644


class GpuLock:
    """An flock on a file named after the GPU. It ends when its process ends, in whatever way."""

    def __init__(self, gpu_id: str) -> None:
        name = re.sub(r"[^A-Za-z0-9-]", "_", gpu_id) or "gpu"
        self._name = gpu_id
        self._path = FOLDER / f"evotune-{name}.lock"
        self._fd = -1

    def __enter__(self) -> GpuLock:
        """RunLocked when another process measures on this GPU."""
        self._fd, writable = self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._fd, 32).decode(errors="replace").strip()
            os.close(self._fd)
            who = f" (process {holder})" if holder.isdigit() else ""
            raise RunLocked(
                f"another evotune run is measuring on GPU {self._name}{who}; wait for it, "
                "or choose another GPU with --device cuda:N"
            ) from error
        if writable:
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())
        return self

    def _open(self) -> tuple[int, bool]:
        """The open file, and whether this process may write it. Another user's file can be locked
        as well."""
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            found = os.open(self._path, flags | os.O_RDWR | os.O_CREAT, _MODE)
        except PermissionError:
            return os.open(self._path, flags | os.O_RDONLY), False
        if os.fstat(found).st_uid == os.geteuid():
            os.fchmod(found, _MODE)  # whatever this user's umask is: the file stays
        return found, True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
