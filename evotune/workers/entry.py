"""The first steps of a child process: it will die with its parent, and opens its private
channel.
"""

from __future__ import annotations

import contextlib
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
from evotune.util.processes import die_with_parent, lower_limit

CANNOT_READ = 3
"""The exit status of a worker that cannot read a message; its log's last line says why."""

_LARGEST_FILE_BYTES = 1 << 30


@contextlib.contextmanager
def open_channel(
    wire: Wire[ToWorker, FromWorker], *, owns_processes: bool
) -> Iterator[BlockingChannel[ToWorker, FromWorker]]:
    """Opens the channel to the parent. A child process, whose only argument is its parent's pid,
    calls this first.

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
    """Appends what this process prints to the file `log` from now on."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


@contextlib.contextmanager
def lasting_imports() -> Iterator[None]:
    """A block for imports of libraries that stay loaded until the process ends. The garbage
    collector skips their objects, in the block and later, which saves an eighth of the time of
    PyTorch's import."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def cannot_read(status: int, log: str) -> bool:
    """Whether a worker with this exit status and log could not read a message."""
    return status == CANNOT_READ and "cannot read a message" in log


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


def _kill_group(signum: int, frame: FrameType | None) -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)
