"""What a host may not do: take more memory, and reach for the process that judges or its clocks.

Without a file or a message of the judge, a candidate of the same user could still read and write
the judge's memory, move the judge or itself to other cores, fill its results only when they are
read, or set the clock. The worker and the zygote hide their memory (`hide_memory`), and a host
gives up the capabilities of root that see through this. A filter of system calls refuses the rest.
Requests about scheduling are ignored, not refused: libraries bind their threads to cores.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evotune.util.processes import lower_limit

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_CAPABILITY_VERSION_3 = 0x20080522
_POWERS = (16, 17, 19, 21, 22, 24, 25, 38, 39)
"""CAP_SYS_MODULE, _RAWIO, _PTRACE, _ADMIN, _BOOT, _RESOURCE, _TIME, CAP_PERFMON, CAP_BPF."""


class _Calls(NamedTuple):
    """A machine's number in a filter, and its numbers of system calls."""

    machine: int
    ignored: Sequence[int]
    """setpriority, sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr,
    ioprio_set"""
    refused: Sequence[int]
    """ptrace, process_vm_readv, process_vm_writev, kcmp, pidfd_getfd, process_madvise, userfaultfd,
    settimeofday, clock_settime, adjtimex, clock_adjtime"""


_CALLS: Mapping[str, _Calls] = {
    "x86_64": _Calls(
        0xC000003E,
        (141, 142, 144, 203, 314, 251),
        (101, 310, 311, 312, 438, 440, 323, 164, 227, 159, 305),
    ),
    "aarch64": _Calls(
        0xC00000B7,
        (140, 118, 119, 122, 274, 30),
        (117, 270, 271, 272, 438, 440, 282, 170, 112, 171, 266),
    ),
}
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of a filter
_NUMBER, _MACHINE = 0, 4  # places in what a filter sees
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_OTHER_NUMBERS = 0x40000000
"""From here x86 has its system calls once more."""


def hide_memory(hidden: bool = True) -> None:
    """Lets no other process of this user read or write this process's memory, open its files or
    trace it, unless that process has CAP_SYS_PTRACE. A program that it executes is not hidden. Does
    nothing except on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, int(not hidden), 0, 0, 0)


def limit(memory_bytes: int, file_bytes: int) -> None:
    """Limits this process, which has one thread, and all that it starts. It may take
    `memory_bytes` more than it has now."""
    for which, most in (
        (resource.RLIMIT_DATA, _own_bytes() + memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
    ):
        lower_limit(which, most)
        soft, _ = resource.getrlimit(which)
        resource.setrlimit(which, (soft, soft))  # a candidate cannot raise it again
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # a program that it executes gains nothing
        _drop_powers(libc)
        if calls := _CALLS.get(platform.machine()):
            _filter(libc, calls)


def _own_bytes() -> int:
    """The memory that this process has now, as RLIMIT_DATA counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmData":
            return int(value.split()[0]) << 10
    return 0


def _drop_powers(libc: ctypes.CDLL) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: 32 each, then the others
    if libc.capget(header, sets) != 0:
        return
    for number in _POWERS:
        for which in range(3):
            sets[3 * (number // 32) + which] &= ~(1 << number % 32)
    libc.capset(header, sets)


def _filter(libc: ctypes.CDLL, calls: _Calls) -> None:
    """Has the system refuse or ignore calls, for this thread and all that it starts. A system
    without such filters goes on without."""
    code = b"".join(_instructions(calls))
    program = ctypes.create_string_buffer(code, len(code))
    about = struct.pack("@HP", len(code) // 8, ctypes.addressof(program))
    libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(about), 0, 0)


def _instructions(calls: _Calls) -> Iterator[bytes]:
    """Each is a code, the jumps if it is true and if not, and an operand."""

    def made(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, operand)

    ignore, refuse = made(_RETURN, _ERROR), made(_RETURN, _ERROR | errno.EPERM)
    yield made(_LOAD, _MACHINE)
    yield made(_IF_EQUAL, calls.machine, if_true=1)
    yield refuse
    yield made(_LOAD, _NUMBER)
    yield made(_IF_AT_LEAST, _OTHER_NUMBERS, if_false=1)
    yield refuse
    for numbers, end in ((calls.ignored, ignore), (calls.refused, refuse)):
        for number in numbers:
            yield made(_IF_EQUAL, number, if_false=1)
            yield end
    yield made(_RETURN, _ALLOW)
