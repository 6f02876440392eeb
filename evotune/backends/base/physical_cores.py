"""The physical cores of this machine: logical CPUs that share one take each other's time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def core_of(cpu: int) -> str:
    """The name of the physical core: the list of the logical CPUs that share it. The CPU's own
    number where the system does not tell."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def shares(cpus: Iterable[int], count: int) -> list[list[int]]:
    """Deals the logical CPUs out: `count` shares of whole physical cores, or of single CPUs where
    there are fewer cores than shares."""
    by_core: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        by_core.setdefault(core_of(cpu), []).append(cpu)
    cores = list(by_core.values())
    if len(cores) < count:
        cores = [[cpu] for core in cores for cpu in core]
    return [[cpu for core in cores[index::count] for cpu in core] for index in range(count)]
