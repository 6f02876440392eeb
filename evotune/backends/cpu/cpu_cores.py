"""The cores that C++ kernels and PyTorch run on."""

from __future__ import annotations

import os
from pathlib import Path


def threads() -> int:
    """The number of threads of both candidate and baseline: OMP_NUM_THREADS, or PyTorch's default,
    which is the number of physical cores that this process may run on."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    logical = os.sched_getaffinity(0)
    if limit.isdigit() and int(limit) > 0:
        return min(int(limit), len(logical))
    return len({_core_of(cpu) for cpu in logical})


def cpus_of_cores(count: int) -> set[int]:
    """The logical CPUs of `count` of the physical cores that this process may run on. All of them
    when it has fewer cores than `count`."""
    logical = os.sched_getaffinity(0)
    cores = list(dict.fromkeys(_core_of(cpu) for cpu in sorted(logical)))[:count]
    chosen = {cpu for cpu in logical if _core_of(cpu) in cores}
    return chosen if count <= len(cores) else logical


def _core_of(cpu: int) -> str:
    """The name of the physical core: the list of the logical CPUs that share it. The CPU's own
    number where the system does not tell."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text().strip()
    except OSError:
        return str(cpu)
