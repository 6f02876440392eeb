"""Measures how busy other processes keep this machine's logical CPUs, and divides CPUs into
cores."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)  # of a line: idle, and waiting for a disk
_GUEST_FIELDS = 8  # the fields from here on (guest time) are part of earlier ones


def busy_shares(look_s: float) -> Mapping[int, float]:
    """The share of `look_s` during which each logical CPU was busy, between 0 and 1. This process
    sleeps meanwhile. Empty if the system does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        before, started_s = _busy_ticks(), time.monotonic()
        time.sleep(look_s)
        after, passed_s = _busy_ticks(), time.monotonic() - started_s
        whole = passed_s * os.sysconf("SC_CLK_TCK")
        return {
            cpu: min(1.0, max(0, ticks - before.get(cpu, ticks)) / whole)
            for cpu, ticks in after.items()
        }
    return {}


def _busy_ticks() -> dict[int, int]:
    found = {}
    for line in _STAT.read_text().splitlines():
        name, *texts = line.split()
        number = name.removeprefix("cpu")
        if name != number and number.isdigit():
            fields = [int(text) for text in texts]
            idle = sum(fields[i] for i in _IDLE_FIELDS)
            found[int(number)] = sum(fields[:_GUEST_FIELDS]) - idle
    return found


# The physical cores of this machine: logical CPUs that share one take each other's time.
def core_of(cpu: int) -> str:
    """The name of a logical CPU's physical core: the list of the logical CPUs that share the core,
    or the CPU's own number if the system does not report that."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def shares(cpus: Iterable[int], count: int) -> list[list[int]]:
    """Divides the logical CPUs into `count` shares of whole physical cores, or of single CPUs if
    there are fewer cores than shares."""
    by_core: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        by_core.setdefault(core_of(cpu), []).append(cpu)
    cores = list(by_core.values())
    if len(cores) < count:
        cores = [[cpu] for core in cores for cpu in core]
    return [[cpu for core in cores[index::count] for cpu in core] for index in range(count)]
