"""How a child process starts: it dies with its parent and keeps its channel to itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from evotune.execute.channel import (
    BlockingChannel,
    FromWorker,
    ToWorker,
    UnreadableMessage,
    Wire,
)

CANNOT_READ = 3
"""A worker's exit status where it cannot read what it is told; its last line says why."""

_PR_SET_PDEATHSIG = 1
_LARGEST_FILE_BYTES = 1 << 30


@contextlib.contextmanager
def open_channel(
    wire: Wire[ToWorker, FromWorker], *, owns_processes: bool
) -> Iterator[BlockingChannel[ToWorker, FromWorker]]:
    """Called first thing in a child whose only argument is its parent's pid.

    When the parent dies, the kernel signals this process: SIGKILL, or, if it starts processes
    of its own, SIGTERM, on which it kills its whole group. The channel gets private
    descriptors; what native code prints to stdout goes to stderr instead. A message that cannot be
    read ends the process with `CANNOT_READ`.
    """
    if owns_processes:
        signal.signal(signal.SIGTERM, _kill_group)
    death_signal = signal.SIGTERM if owns_processes else signal.SIGKILL
    _limit_damage()
    die_with_parent(int(sys.argv[1]), death_signal)
    read_fd, write_fd = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)
    try:
        yield BlockingChannel(read_fd, write_fd, wire.to_worker)
    except UnreadableMessage as error:
        print(f"{wire.worker} cannot read a message: {error}", file=sys.stderr, flush=True)
        raise SystemExit(CANNOT_READ) from error


def cannot_read(status: int, log: str) -> bool:
    """Whether a worker with that exit status and log ended over a message that it cannot read."""
    return status == CANNOT_READ and "cannot read a message" in log


def die_with_parent(parent: int, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """The kernel sends this process that signal when the process with the pid `parent`, or the
    thread of it that started this one, ends. Linux only; elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        raise SystemExit(0)


def _limit_damage() -> None:
    """What native code of this process, or a compiler that it starts, can do to the machine.

    No core dumps, no file (or log) without end; and when memory runs out, the kernel takes
    this process, not the search or the user's session.
    """
    _, hardest = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hardest))
    lower_limit(resource.RLIMIT_FSIZE, _LARGEST_FILE_BYTES)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def lower_limit(which: int, limit: int) -> None:
    """Lowers this process's soft limit, for itself and the processes it starts."""
    soft, hard = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY or soft > limit:
        resource.setrlimit(which, (limit, hard))


def _kill_group(signum: int, frame: FrameType | None) -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)
