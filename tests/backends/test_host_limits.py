"""What the process of a callable may not do, tried in a process that has these limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evotune.backends.python.host_limits import _CALLS, _instructions

ROOT = Path(__file__).parents[2]

ATTEMPTS = """
import ctypes, os, resource, sys, time
from evotune.backends.python.host_limits import hide_memory, limit

hide_memory()  # as the process that judges does
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
hide_memory(False)
limit(64 << 20, 1 << 20)
libc = ctypes.CDLL(None, use_errno=True)
"""
REFUSED = {
    "memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "descriptors": "open(f'/proc/{os.getppid()}/fd/1', 'wb')",
    "clock": "time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "limit": "resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))",
}


def _attempt(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ATTEMPTS + text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("attempt", REFUSED)
def test_a_host_does_not_reach_for_its_judge(attempt: str) -> None:
    done = _attempt(
        f"try:\n    {REFUSED[attempt]}\nexcept (PermissionError, ValueError):\n    os._exit(7)\n"
    )
    assert done.returncode == 7, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_host_computes_and_its_wishes_about_scheduling_are_ignored() -> None:
    done = _attempt(
        "before = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)\n"
        "os.sched_setaffinity(0, {max(before[0])})\n"
        "os.sched_setaffinity(os.getppid(), {max(before[0])})\n"
        "os.setpriority(os.PRIO_PROCESS, 0, 19)\n"
        "assert before == (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0))\n"
        "assert os.sched_getaffinity(os.getppid()) == before[0]\n"
        "for number in (101, 323) if os.uname().machine == 'x86_64' else ():\n"
        "    assert libc.syscall(number, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1\n"
        "os._exit(0 if sum(range(10)) == 45 else 1)\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("machine", _CALLS)
def test_a_filter_ends_by_allowing_what_it_does_not_name(machine: str) -> None:
    calls = _CALLS[machine]
    made = list(_instructions(calls))
    assert len(calls.ignored) == 6
    assert len(calls.refused) == 11
    assert len(made) == 6 + 2 * (6 + 11) + 1
    assert made[-1] == bytes.fromhex("060000000000ff7f")
