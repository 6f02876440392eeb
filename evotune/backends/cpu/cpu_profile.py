"""This machine's processor: its figures for `device.*`, and its cores."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

from evotune.backends.base.physical_cores import core_of
from evotune.backends.base.profile import DeviceProfile
from evotune.backends.cpu.free_cores import least_busy
from evotune.trial import Value

_HIGHEST_CLOCK_GHZ = 6.5  # above any CPU sold: keeps the roofline check free of false alarms


@functools.cache
def profile(count: int = 0) -> DeviceProfile:
    """This machine's CPU, used with `count` threads, or with as many as `threads` says."""
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
    """The most that one core can do, in the narrowest type that a problem may have."""
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
    """The first processor's value in /proc/cpuinfo; "" when there is none."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    except OSError:
        pass
    return ""


def cpu_flags() -> frozenset[str]:
    """Names of the instruction sets that the processor has."""
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


# --- The cores that C++ kernels and PyTorch run on ------------------------------------------------


def threads() -> int:
    """The number of threads of both candidate and baseline in this process: OMP_NUM_THREADS, or
    PyTorch's default, which is the number of physical cores that this process may run on."""
    logical = os.sched_getaffinity(0)
    if wished := wished_threads():
        return min(wished, len(logical))
    return len({core_of(cpu) for cpu in logical})


def wished_threads() -> int:
    """OMP_NUM_THREADS; 0 where that is not set to a number."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdigit() else 0


def cpus_of_cores(count: int) -> set[int]:
    """The logical CPUs of `count` of the physical cores that this process may run on: of those
    that other work uses least. All of them when it has no more cores than `count`."""
    logical = os.sched_getaffinity(0)
    cores = list(dict.fromkeys(core_of(cpu) for cpu in sorted(logical)))
    if count >= len(cores):
        return logical
    chosen = least_busy(cores, count)
    return {cpu for cpu in logical if core_of(cpu) in chosen}
