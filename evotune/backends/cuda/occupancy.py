"""Computes how many blocks of a kernel fit on one multiprocessor, as the hardware allocates them.

Allocation granularities: CUDA C Programming Guide, "Compute Capabilities", and the occupancy
calculator of the CUDA toolkit. They hold for compute capability 7.0 and later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evotune.trial import Value

_REGISTERS_PER_WARP_UNIT = 256
_WARPS_UNIT = 4  # a multiprocessor has four schedulers, each with its own registers
_SHARED_BYTES_UNIT = 128


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The blocks resident on one multiprocessor, and the share of its warps that they fill (0 to
    1)."""

    blocks: int
    share: float


def occupancy(
    device: Mapping[str, Value], *, threads: int, registers: int, shared_bytes: int
) -> Occupancy:
    """The occupancy of blocks of `threads` threads with `registers` registers each. A block has
    `shared_bytes` of static and dynamic shared memory together. `device` holds a CUDA profile's
    attributes."""

    def limit(name: str) -> int:
        return int(device[name])

    warp_size = limit("warp_size")
    warps = -(-threads // warp_size)
    most_warps = limit("threads_per_multiprocessor") // warp_size
    blocks = min(limit("blocks_per_multiprocessor"), most_warps // warps)
    per_warp = _round_up(registers * warp_size, _REGISTERS_PER_WARP_UNIT)
    if per_warp:
        if per_warp * _round_up(warps, _WARPS_UNIT) > limit("registers_per_block"):
            return Occupancy(0, 0.0)
        fitting_warps = limit("registers_per_multiprocessor") // per_warp
        blocks = min(blocks, fitting_warps // _WARPS_UNIT * _WARPS_UNIT // warps)
    per_block = _round_up(
        shared_bytes + limit("reserved_shared_bytes_per_block"), _SHARED_BYTES_UNIT
    )
    if shared_bytes > limit("shared_bytes_per_block"):
        return Occupancy(0, 0.0)
    if per_block:
        blocks = min(blocks, limit("shared_bytes_per_multiprocessor") // per_block)
    return Occupancy(blocks, blocks * warps / most_warps)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
