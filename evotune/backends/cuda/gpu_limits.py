"""Finds which launches a GPU refuses, before compiling and from the compiled figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from evotune.backends.base.backend import Figures, LaunchBounds
from evotune.backends.base.launch import Launch, resources_of
from evotune.trial import NamedFigures, Value, whole

# --------------------------------------------------------------------------------------------------
# Computes how many blocks of a kernel fit on one multiprocessor, as the hardware allocates them.
# Allocation granularities: CUDA C Programming Guide, "Compute Capabilities", and the occupancy
# calculator of the CUDA toolkit. They hold for compute capability 7.0 and later.

_REGISTERS_PER_WARP_UNIT = 256
_WARPS_UNIT = 4  # a multiprocessor has four schedulers, each with its own registers
_SHARED_BYTES_UNIT = 128


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The blocks resident on one multiprocessor, the share of its warps that they fill (0 to 1),
    and the resource that keeps more blocks out: `registers`, `shared memory`, `threads` or `blocks`
    (the multiprocessor's slots for them). If there are several, the first one in this order.
    `fitting` has the blocks that each of them would allow; {} if not even one block fits."""

    blocks: int
    share: float
    bound_by: str
    fitting: Mapping[str, int] = field(default_factory=dict, compare=False)


def occupancy(
    device: Mapping[str, Value], *, threads: int, registers: int, shared_bytes: int
) -> Occupancy:
    """The occupancy of blocks of `threads` threads with `registers` registers each. A block has
    `shared_bytes` of static and dynamic shared memory together. `device`: a CUDA profile's
    attributes."""

    def limit(name: str) -> int:
        return int(device[name])

    warp_size = limit("warp_size")
    warps = -(-threads // warp_size)
    most_warps = limit("threads_per_multiprocessor") // warp_size
    fitting: dict[str, int] = {}
    per_warp = _round_up(registers * warp_size, _REGISTERS_PER_WARP_UNIT)
    if per_warp:
        if per_warp * _round_up(warps, _WARPS_UNIT) > limit("registers_per_block"):
            return Occupancy(0, 0.0, "registers")
        fitting_warps = limit("registers_per_multiprocessor") // per_warp
        fitting["registers"] = fitting_warps // _WARPS_UNIT * _WARPS_UNIT // warps
    per_block = _round_up(
        shared_bytes + limit("reserved_shared_bytes_per_block"), _SHARED_BYTES_UNIT
    )
    if shared_bytes > limit("shared_bytes_per_block"):
        return Occupancy(0, 0.0, "shared memory")
    if per_block:
        fitting["shared memory"] = limit("shared_bytes_per_multiprocessor") // per_block
    fitting["threads"] = most_warps // warps
    fitting["blocks"] = limit("blocks_per_multiprocessor")
    bound_by = min(fitting, key=fitting.__getitem__)
    blocks = fitting[bound_by]
    return Occupancy(blocks, blocks * warps / most_warps, bound_by, fitting)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


_GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
_BLOCK_LIMITS = (1024, 1024, 64)
_AXES = "xyz"
_WORST_IS_LEAST = ("occupancy", "blocks_resident")


def launch_bounds(device: Mapping[str, Value]) -> LaunchBounds:
    """The largest launch that a GPU with these attributes accepts."""
    threads, shared_bytes = device["threads_per_block"], device["shared_bytes_per_block"]
    return LaunchBounds(_GRID_LIMITS, _BLOCK_LIMITS, int(threads), int(shared_bytes))


def launch_violation(launch: Launch, device: Mapping[str, Value]) -> str:
    """Why no GPU with these limits accepts the launch, in words; "" if one does."""
    bounds = launch_bounds(device)
    for what, sizes, limits in (
        ("grid", launch.grid, bounds.grid),
        ("block", launch.block, bounds.block),
    ):
        for axis, size, limit in zip(_AXES, sizes, limits, strict=False):
            if not 1 <= size <= limit:
                return f"{what}.{axis} is {size}, but must be from 1 to {limit}"
    threads = math.prod(launch.block)
    if threads > bounds.threads:
        return f"a block of {threads} threads, but the device takes {bounds.threads}"
    if launch.shared_bytes < 0:
        return f"shared_bytes is {launch.shared_bytes}"
    if launch.shared_bytes > bounds.shared_bytes:
        most = f"but a block may have {bounds.shared_bytes}"
        return f"{launch.shared_bytes} bytes of shared memory, {most}"
    return ""


def launch_figures(launch: Launch, resources: NamedFigures, device: Mapping[str, Value]) -> Figures:
    """The figures of a launch. `resources` are its binary's, as `NvrtcCompiler` returns them."""
    own = resources_of(launch.entry, resources)
    threads = math.prod(launch.block)
    registers = whole(own, "registers")
    static_bytes = whole(own, "static_shared_bytes")
    total_bytes = static_bytes + launch.shared_bytes
    resident = occupancy(device, threads=threads, registers=registers, shared_bytes=total_bytes)
    stores, loads = whole(own, "spill_store_bytes"), whole(own, "spill_load_bytes")
    values = {
        "registers": registers,
        "spill_bytes": stores + loads,
        "spill_store_bytes": stores,
        "spill_load_bytes": loads,
        "stack_bytes": whole(own, "stack_bytes"),
        "serialized": whole(own, "serialized"),
        "static_shared_bytes": static_bytes,
        "shared_bytes_total": total_bytes,
        "occupancy": resident.share,
        "blocks_resident": resident.blocks,
    }
    return Figures(values, _violation(threads, registers, static_bytes, total_bytes, device))


def _violation(
    threads: int, registers: int, static_bytes: int, total_bytes: int, device: Mapping[str, Value]
) -> str:
    most_registers = int(device["registers_per_block"])
    most_bytes = int(device["shared_bytes_per_block"])
    if total_bytes > most_bytes:
        return (
            f"{total_bytes} bytes of shared memory ({static_bytes} of them static), "
            f"but a block may have {most_bytes}"
        )
    if occupancy(device, threads=threads, registers=registers, shared_bytes=0).blocks == 0:
        return (
            f"{threads} threads of {registers} registers, but a block may have {most_registers} "
            "registers"
        )
    if occupancy(device, threads=threads, registers=registers, shared_bytes=total_bytes).blocks:
        return ""
    return (
        f"no block of {threads} threads, {registers} registers each, with {total_bytes} bytes of "
        "shared memory fits on a multiprocessor"
    )


def worst(figures: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
    """The worst figure of several launches, by name: the smallest value of `occupancy` and
    `blocks_resident`, the greatest of all others."""
    found: dict[str, int | float] = {}
    for values in figures:
        for name, value in values.items():
            choose = min if name in _WORST_IS_LEAST else max
            found[name] = choose(value, found.get(name, value))
    return found


class GpuLimits:
    """See `evotune.backends.base.backend.Limits`."""

    def violation(self, launch: Launch, device: Mapping[str, Value]) -> str:
        return launch_violation(launch, device)

    def bounds(self, device: Mapping[str, Value]) -> LaunchBounds:
        return launch_bounds(device)

    def figures(
        self, launch: Launch, resources: NamedFigures, device: Mapping[str, Value]
    ) -> Figures:
        return launch_figures(launch, resources, device)

    def worst(self, figures: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
        return worst(figures)
