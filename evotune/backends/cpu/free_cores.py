"""The cores that other work leaves free. Candidate and baseline of a run get as many threads.

OpenMP's threads wait for each other by spinning. Where one of them has to share its core, all of
them wait for it, and a call takes many times as long.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from evotune.backends.base.busy_cores import busy_shares
from evotune.backends.base.physical_cores import core_of

_LOOKS = 5  # their median: work of a moment takes no core
_LOOK_S = 0.1
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def free_cores() -> int:
    """The number of physical cores that this process may use and that other processes leave free
    now, at least 1. Takes half a second."""
    cpus = os.sched_getaffinity(0)
    looks = [busy_shares(_LOOK_S) for _ in range(_LOOKS)]
    busy = statistics.median(sum(look.get(cpu, 0.0) for cpu in cpus) for look in looks)
    return left_over(len({core_of(cpu) for cpu in cpus}), busy, quota())


def left_over(cores: int, busy: float, limit: float = math.inf) -> int:
    """Of `cores` physical cores, those left by other work that keeps `busy` cores at work. A core
    that others use for less than half of the time is free. `limit`: the cores' worth of time that
    this process may use."""
    taken = math.ceil(busy - 0.5)
    return max(1, math.floor(min(cores - taken, limit)))


def quota() -> float:
    """The cores' worth of time that this process's control groups allow; infinite without a
    limit."""
    with contextlib.suppress(OSError):
        return min(_limits(_OWN_GROUPS.read_text().splitlines()), default=math.inf)
    return math.inf


def _limits(groups: Iterable[str]) -> Iterator[float]:
    """Of each group that this process is in, and of the groups around it."""
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, read = _GROUPS, _second_version
        elif "cpu" in controllers.split(","):
            root, read = _GROUPS / "cpu", _first_version
        else:
            continue
        own = root / path.lstrip("/")
        # In a container the path may be the host's: then the root is the container's own group.
        for group in dict.fromkeys((own, *own.parents, root)):
            if group == root or root in group.parents:
                with contextlib.suppress(OSError, ValueError):
                    yield read(group)


def _second_version(group: Path) -> float:
    allowed, period = (group / "cpu.max").read_text().split()
    return math.inf if allowed == "max" else int(allowed) / int(period)


def _first_version(group: Path) -> float:
    allowed = int((group / "cpu.cfs_quota_us").read_text())
    return allowed / int((group / "cpu.cfs_period_us").read_text()) if allowed > 0 else math.inf


def least_busy(cores: Sequence[str], count: int) -> list[str]:
    """The `count` of the physical `cores` that other work uses least; of equal ones the first."""
    shares = busy_shares(_LOOK_S)
    busy: dict[str, float] = {}
    for cpu in os.sched_getaffinity(0):
        busy[core_of(cpu)] = busy.get(core_of(cpu), 0.0) + shares.get(cpu, 0.0)
    return sorted(cores, key=lambda core: round(busy.get(core, 0.0), 1))[:count]
