"""This machine's processor: its figures for `device.*`, and its cores."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from evotune.backends.base.cpu_cores import busy_shares, core_of
from evotune.backends.base.launch import DeviceProfile
from evotune.trial import Value

_HIGHEST_CLOCK_GHZ = 6.5  # above any CPU sold: keeps the roofline check free of false alarms


@functools.cache
def profile(count: int = 0) -> DeviceProfile:
    """The profile of this machine's CPU with `count` threads; 0 stands for the number that
    `threads` returns."""
    used = min(count, len(os.sched_getaffinity(0))) or threads()
    flags = cpu_flags()
    simd_bytes = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    attributes: dict[str, Value] = {
        "threads": used,
        "cores": len(os.sched_getaffinity(0)),
        "simd_bytes": simd_bytes,
        "vector_registers": 32 if "avx512f" in flags or platform.machine() == "aarch64" else 16,
        "l1_bytes": _cache_bytes(1, 32 << 10),
        "l2_bytes": _cache_bytes(2, 512 << 10),
        "l3_bytes": _cache_bytes(3, 8 << 20),
    }
    widths = {64: "avx512", 32: "avx2", 16: "simd128"}
    level = "sve" if "sve" in flags else widths[simd_bytes]
    return DeviceProfile(
        name=_cpu_name(),
        backend="cpu",
        arch=f"{platform.machine()}-{level}",
        attributes=attributes,
        peak_gflops=used * _HIGHEST_CLOCK_GHZ * _flops_per_cycle(flags, simd_bytes),
    )


def _flops_per_cycle(flags: frozenset[str], simd_bytes: int) -> int:
    """The peak of one core, in the narrowest type that a problem may have."""
    if {"amx_bf16", "amx_fp16"} & flags:
        return 2048  # one 16x16x32 tile product every 16 cycles
    unit_bytes = 2 * simd_bytes
    if "asimd" in flags:  # ARM: four units of 128 bits, or two of SVE's 512 bits at the most
        unit_bytes = 128 if "sve" in flags else 64
    in_float32 = 2 * unit_bytes // 4
    if "bf16" in flags:  # ARM's products of small matrices
        return 4 * in_float32
    narrow = {"avx512_bf16", "avx512_fp16", "asimdhp"} & flags
    return 2 * in_float32 if narrow else in_float32


def cpuinfo(field: str) -> str:
    """The first processor's value in /proc/cpuinfo; "" if there is none."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    except OSError:
        pass
    return ""


def cpu_flags() -> frozenset[str]:
    """The names of the processor's instruction sets."""
    return frozenset((cpuinfo("flags") or cpuinfo("Features")).split())  # x86 or ARM


def _cpu_name() -> str:
    """The name, by numbers where /proc/cpuinfo has only those (ARM). The launcher of exported
    packages has the same code."""
    name = cpuinfo("model name")
    if not name and (part := cpuinfo("CPU part")):
        name = f"CPU implementer {cpuinfo('CPU implementer')} part {part}"
    return name or platform.processor() or platform.machine()


def _cache_bytes(level: int, fallback: int) -> int:
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "level").read_text().strip() != str(level):
                continue
            if (index / "type").read_text().strip() == "Instruction":
                continue
            text = (index / "size").read_text().strip()
        except OSError:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        return int(text.rstrip("KM")) * unit
    return fallback


# The cores that C++ kernels and PyTorch run on.


def threads() -> int:
    """The number of threads of both candidate and baseline in this process: OMP_NUM_THREADS, or
    PyTorch's default, which is the number of physical cores that this process may run on."""
    logical = os.sched_getaffinity(0)
    if wished := wished_threads():
        return min(wished, len(logical))
    return len({core_of(cpu) for cpu in logical})


def wished_threads() -> int:
    """OMP_NUM_THREADS; 0 if that is not set to a number."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdigit() else 0


def cpus_of_cores(count: int) -> set[int]:
    """The logical CPUs of the `count` physical cores that other work uses least, among those that
    this process may run on. All of them if it has no more cores than `count`."""
    logical = os.sched_getaffinity(0)
    cores = list(dict.fromkeys(core_of(cpu) for cpu in sorted(logical)))
    if count >= len(cores):
        return logical
    chosen = least_busy(cores, count)
    return {cpu for cpu in logical if core_of(cpu) in chosen}


# The cores that other work leaves free. Candidate and baseline of a run get as many threads.
#
# OpenMP's threads wait for each other by spinning. Where one of them has to share its core, all of
# them wait for it, and a call takes many times as long.
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
    """How many of `cores` physical cores are free while other work keeps `busy` cores busy. A core
    that other work uses for less than half of the time is free. `limit`: the CPU time that this
    process may use, in cores."""
    taken = math.ceil(busy - 0.5)
    return max(1, math.floor(min(cores - taken, limit)))


def quota() -> float:
    """The CPU time that this process's control groups allow, in cores; infinite without a limit."""
    with contextlib.suppress(OSError):
        return min(_limits(_OWN_GROUPS.read_text().splitlines()), default=math.inf)
    return math.inf


def _limits(groups: Iterable[str]) -> Iterator[float]:
    """The limits of each group that contains this process, and of its parent groups."""
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
    """The `count` physical `cores` that other work uses least; among equals the first ones."""
    shares = busy_shares(_LOOK_S)
    busy: dict[str, float] = {}
    for cpu in os.sched_getaffinity(0):
        busy[core_of(cpu)] = busy.get(core_of(cpu), 0.0) + shares.get(cpu, 0.0)
    return sorted(cores, key=lambda core: round(busy.get(core, 0.0), 1))[:count]
