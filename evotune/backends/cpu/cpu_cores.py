"""The cores that C++ kernels and PyTorch run on."""

from __future__ import annotations

import os
from pathlib import Path


def threads() -> int:
    """Threads used for candidate and baseline alike: OMP_NUM_THREADS, or PyTorch's default, which
    is the number of physical cores that this process may run on."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    logical = os.sched_getaffinity(0)
    if limit.isdigit() and int(limit) > 0:
        return min(int(limit), len(logical))
    return len({_core_of(cpu) for cpu in logical})


def cpus_of_cores(count: int) -> set[int]:
    """The logical CPUs of so many of the physical cores that this process may run on."""
    logical = os.sched_getaffinity(0)
    cores = list(dict.fromkeys(_core_of(cpu) for cpu in sorted(logical)))[:count]
    chosen = {cpu for cpu in logical if _core_of(cpu) in cores}
    return chosen if count <= len(cores) else logical


def _core_of(cpu: int) -> str:
    """Names the physical core: the logical CPUs that share it; the CPU itself where nobody says."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text().strip()
    except OSError:
        return str(cpu)
