"""The first steps of a child process: it will die with its parent, and its channel is private."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from evotune.util.channel import (
    BlockingChannel,
    FromWorker,
    ToWorker,
    UnreadableMessage,
    Wire,
)

CANNOT_READ = 3
"""The exit status of a worker that cannot read a message; its log's last line says why."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LARGEST_FILE_BYTES = 1 << 30


@contextlib.contextmanager
def open_channel(
    wire: Wire[ToWorker, FromWorker], *, owns_processes: bool
) -> Iterator[BlockingChannel[ToWorker, FromWorker]]:
    """Opens the channel to the parent. A child, whose only argument is its parent's pid, calls this
    first.

    When the parent dies, the kernel signals this process: SIGKILL, or, with `owns_processes`,
    SIGTERM, on which it kills its whole group. The channel gets private descriptors; native code
    that prints to stdout writes to stderr instead. A message that cannot be read ends the process
    with `CANNOT_READ`.
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


def write_to(log: str) -> None:
    """What this process prints goes to the end of that file from now on."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


@contextlib.contextmanager
def lasting_imports() -> Iterator[None]:
    """For imports of libraries that stay until the process ends. No collection of garbage looks at
    their objects, in the block or later: that takes an eighth of the time of PyTorch's import."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def cannot_read(status: int, log: str) -> bool:
    """Whether this exit status and log are of a worker that could not read a message."""
    return status == CANNOT_READ and "cannot read a message" in log


def die_with_parent(parent: int, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Asks the kernel to send this process `death_signal` when the process with the pid `parent`,
    or the thread that started this one, ends. Does nothing except on Linux."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        raise SystemExit(0)


def adopt_orphans() -> None:
    """Makes this process the parent of the processes that outlive their own parent, if they descend
    from it: so it sees each process that native code here has started. Does nothing except on
    Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _limit_damage() -> None:
    """Limits the damage to the machine by native code here, or by a compiler that it starts.

    It leaves no core dumps, and its files and logs stay below 1 GiB each. When memory runs out, the
    kernel kills this process rather than the search or the user's other programs.
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
