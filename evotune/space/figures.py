"""Figures of a candidate that are known only after compiling; `after_compile` may use them."""

from __future__ import annotations

from collections.abc import Mapping

COMPILED_FIGURES: Mapping[str, type] = {
    "registers": int,  # of a thread
    "spill_bytes": int,  # stores and loads
    "spill_store_bytes": int,
    "spill_load_bytes": int,
    "stack_bytes": int,  # of a thread
    "serialized": int,  # 1 where ptxas makes each wgmma wait for the one before it
    "static_shared_bytes": int,
    "shared_bytes_total": int,  # of a block, static and dynamic
    "occupancy": float,  # resident warps / the most a multiprocessor takes, 0 to 1
    "blocks_resident": int,  # on a multiprocessor
}
"""Name -> type of each figure. A figure is the worst over the launches of a case."""
