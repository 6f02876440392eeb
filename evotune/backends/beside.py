"""Names the other work on the machine when a run begins, since it makes times longer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from evotune.backends.base.cpu_cores import busy_shares, core_of
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.registry import named
from evotune.util.words import counted

_LOOK_S = 0.2
_BUSY_CORES = 0.3  # less is what a desktop does anyway
_WORKER = b"evotune.workers.device_worker"


def others_at_work(devices: Sequence[DeviceProfile]) -> list[str]:
    """A line in words for each: cores that other processes keep busy, other runs of evotune that
    measure, devices at work. Call it before this process starts workers. Takes 0.2 s."""
    found = [*_busy_cores(), *_other_runs()]
    for device in devices:
        found += named(device.backend).others_at_work(device)
    return found


def sharing(profile: DeviceProfile) -> str:
    """How runs share the cores of a CPU without taking each other's, where another run of evotune
    measures now; "" else."""
    cores = len({core_of(cpu) for cpu in os.sched_getaffinity(0)})
    runs = len(_measuring_parents()) + 1
    if runs == 1 or cores == 1 or "threads" not in profile.attributes:
        return ""
    each, request = max(1, cores // runs), named(profile.backend).requests[0]
    return f"start each run with OMP_NUM_THREADS={each} or --device {request}:{each}"


def in_part(profile: DeviceProfile) -> str:
    """How a run uses the device, where it uses a part of it only: a CPU with fewer threads than
    this process has physical cores. "" else."""
    used = cores_in_use(profile)
    if used is None:
        return ""
    threads, cores = used
    return (
        f"candidates and baselines run on {threads} of {counted(cores, 'core')}, with as many "
        "threads, throughout this run"
    )


def cores_in_use(profile: DeviceProfile) -> tuple[int, int] | None:
    """The threads of a CPU's profile and the physical cores of this process, where the profile has
    fewer threads; None else."""
    threads = profile.attributes.get("threads")
    cores = len({core_of(cpu) for cpu in os.sched_getaffinity(0)})
    return (threads, cores) if isinstance(threads, int) and threads < cores else None


def _busy_cores() -> Iterator[str]:
    busy = sum(busy_shares(_LOOK_S).values())
    if busy > _BUSY_CORES:
        yield f"other processes keep {busy:.1f} of {os.cpu_count() or 1} cores busy"


def _other_runs() -> Iterator[str]:
    yield from _in_one_line(sorted(_measuring_parents()))


def _measuring_parents() -> set[int]:
    """Other runs of evotune: their device workers name another parent than this process."""
    parents = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_bytes().split(b"\0")
            if _WORKER in words:
                parents.add(int(words[words.index(_WORKER) + 1]))
    return parents - {os.getpid()}


def _in_one_line(processes: Sequence[int]) -> Iterator[str]:
    if len(processes) == 1:
        yield f"another evotune run is measuring (process {processes[0]})"
    elif processes:
        named = ", ".join(map(str, processes))
        yield f"{len(processes)} other evotune runs are measuring (processes {named})"
