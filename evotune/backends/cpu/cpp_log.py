"""Reads the log of a C++ compiler and turns a failure into an outcome."""

from __future__ import annotations

from pathlib import Path

from evotune.device.define_checks import reason_of, redefined
from evotune.device.launch import CompileFailure
from evotune.device.signals import describe_status
from evotune.trial import OutcomeKind

_LOG_BYTES = 8192
_CRASH_MARKS = (
    "internal compiler error",
    "signal terminated program",  # g++ says this of cc1plus, the compiler that it runs
    "out of memory allocating",
    "virtual memory exhausted",
    "clang frontend command failed due to signal",
)
_ERROR_MARKS = ("error:", "undefined reference")


def read_log(path: Path) -> str:
    """The text of a log. Of a long one only the beginning, where the cause is, and the end."""
    with path.open("rb") as file:
        head = file.read(_LOG_BYTES)
        rest = path.stat().st_size - len(head)
        if rest > 0:
            file.seek(max(len(head), len(head) + rest - _LOG_BYTES))
            head += b"\n[...]\n" + file.read(_LOG_BYTES)
    return head.decode(errors="replace")


def failure(status: int, log: str, seconds: float) -> CompileFailure:
    """The failure of a compiler that wrote no binary and ended with `status`."""
    if status < 0:
        reason = f"the compiler {describe_status(status)}"
        return CompileFailure(OutcomeKind.COMPILE_CRASH, reason, log, seconds)
    lines = [line.strip() for line in log.splitlines()]
    crash = next((line for line in lines if any(mark in line for mark in _CRASH_MARKS)), "")
    if crash:
        return CompileFailure(OutcomeKind.COMPILE_CRASH, crash, log, seconds)
    name = redefined(log)
    error = next((line for line in lines if any(mark in line for mark in _ERROR_MARKS)), "")
    reason = (reason_of(name) if name else error) or f"the compiler {describe_status(status)}"
    return CompileFailure(OutcomeKind.COMPILE_ERROR, reason, log, seconds)
