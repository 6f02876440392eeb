"""Names of the signals that end compilers and workers."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """SIGSEGV for 11; "signal 40", say, for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_status(status: int) -> str:
    """A process's exit status, as subprocess gives it, in words."""
    return f"died of {signal_name(-status)}" if status < 0 else f"ended with status {status}"
