"""The reasons for which a warp waits, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

STALLS: Final[Mapping[str, str]] = {
    "long_scoreboard": "for global or local memory",
    "short_scoreboard": "for shared memory or MUFU",
    "mio_throttle": "in the queue of shared memory and MUFU",
    "lg_throttle": "in the queue of global and local memory",
    "math_pipe_throttle": "for a busy math pipe",
    "wait": "for an instruction's fixed latency",
    "barrier": "at a barrier",
    "membar": "at a memory barrier",
    "no_instruction": "for instructions to be fetched",
    "branch_resolving": "for a branch",
    "dispatch_stall": "for the dispatcher",
    "gmma": "for wgmma",
    "sleeping": "in nanosleep",
}
"""By ncu's names. Each completes "it waits"."""
