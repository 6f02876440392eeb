"""What native code leaves behind in the process that called it: threads, children, rounding."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

_GLANCE_S = 0.001  # how often it is looked for work that should have ended
_GLANCES = 3
_LONGEST_LOOK_S = 0.05  # a thread of OpenMP's that is denied a core sleeps as soon as it has one
_BUSY_S = 0.001  # of a core in one look: idle threads take none, and seldom half of it


def float_environment_changed() -> bool:
    """Whether this thread flushes denormals or rounds otherwise than to nearest.

    Constants come from a list: Python would compute an expression of literals by itself.
    """
    one, tiny, least = _PROBES
    return tiny + one != one or one - tiny != one or least * one != least or least + least == 0


_PROBES = [1.0, 2.0**-60, 5e-324]


def _seconds_of_other_threads() -> float:
    return time.process_time() - time.thread_time()


def _running_threads() -> set[int]:
    """Threads of this process, but for this one, that run or wait for a core only."""
    found = set()
    for task in _tasks():
        with contextlib.suppress(OSError):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(task.name) != threading.get_native_id():
                found.add(int(task.name))
    return found


def kept_busy() -> str:
    """What other threads of this process do just now, in words; "" when they rest."""
    before_s, started_s = _seconds_of_other_threads(), time.perf_counter()
    threads = _running_threads()
    elapsed_s = busy_s = 0.0
    glances = 0
    while glances < _GLANCES or (threads and busy_s <= _BUSY_S and elapsed_s < _LONGEST_LOOK_S):
        time.sleep(_GLANCE_S)
        glances += 1
        threads &= _running_threads()
        elapsed_s = time.perf_counter() - started_s
        busy_s = _seconds_of_other_threads() - before_s
    if threads or busy_s > _BUSY_S:
        cores = busy_s / elapsed_s
        return f"kept {len(threads)} threads and {cores:.1f} cores busy after it returned"
    return ""


def _tasks() -> list[Path]:
    try:
        return list(Path("/proc/self/task").iterdir())
    except OSError:
        return []


def has_children() -> bool:
    """Whether this process has child processes, dead or alive; False where nobody can tell."""
    for task in _tasks():
        with contextlib.suppress(OSError):
            if (task / "children").read_text().strip():
                return True
    return False
