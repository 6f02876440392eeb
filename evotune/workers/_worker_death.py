"""The cause of a device worker's death, read from its exit status and its log."""

from __future__ import annotations

import signal

from evotune.trial import OutcomeKind
from evotune.workers.entry import cannot_read

_CRASHES: dict[int, OutcomeKind] = {
    signal.SIGSEGV: OutcomeKind.ILLEGAL_ACCESS,
    signal.SIGBUS: OutcomeKind.ILLEGAL_ACCESS,
    signal.SIGABRT: OutcomeKind.LAUNCH_ERROR,
    signal.SIGILL: OutcomeKind.LAUNCH_ERROR,
    signal.SIGFPE: OutcomeKind.LAUNCH_ERROR,
}
_TRACEBACK = "Traceback (most recent call last)"
# glibc prints one of these before SIGABRT when it finds its heap or stack overwritten.
_OVERWRITTEN = ("corrupt", "invalid size", "invalid next size", "invalid pointer", "double free",
                "smashing", "buffer overflow detected")  # fmt: skip


def raised(status: int, log: str) -> bool:
    """Whether a worker ended with a Python exception, or could not read a message."""
    return (status == 1 and _TRACEBACK in log) or cannot_read(status, log)


def last_words(log: str) -> str:
    """The log's last line, or the line that names its last exception: PyTorch's exceptions have
    more lines after that one."""
    lines = log.splitlines()
    if _TRACEBACK in log:
        trace = log.rpartition(_TRACEBACK)[2].splitlines()[1:]
        lines = [line for line in trace if line and not line.startswith(" ")][:1] or lines
    return lines[-1] if lines else ""


def crash_kind(status: int, log: str) -> OutcomeKind | None:
    """The candidate's outcome that a worker's death shows; None when it shows none."""
    if status == -signal.SIGABRT and any(word in log[-300:] for word in _OVERWRITTEN):
        return OutcomeKind.ILLEGAL_ACCESS
    return _CRASHES.get(-status)
