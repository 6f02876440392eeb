"""Makes synthetic_recording.json.gz: a made-up kernel in the format of Kernel Tuner's caches.

    python tests/data/make_synthetic_recording.py

2,016 configurations of 6 parameters; the times follow a model with interactions, ripples
and 1% of fixed noise, and a share of the configurations fail in the ways recorders know.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

PARAMETERS: dict[str, list[int]] = {
    "block_x": [16, 32, 64, 128, 256],
    "block_y": [1, 2, 4, 8, 16],
    "tile_x": [1, 2, 3, 4],
    "tile_y": [1, 2, 3, 4],
    "vector": [1, 2, 4],
    "staging": [0, 1],
}
FILE = Path(__file__).parent / "synthetic_recording.json.gz"


def is_member(c: dict[str, int]) -> bool:
    return 32 <= c["block_x"] * c["block_y"] <= 1024


def failure(c: dict[str, int]) -> str | None:
    threads = c["block_x"] * c["block_y"]
    registers = 20 + 6 * c["tile_x"] * c["tile_y"] + 4 * c["vector"]
    staged = threads * c["tile_x"] * c["tile_y"] * 4 * c["staging"]
    if registers * threads > 65536:
        return "RuntimeFailedConfig"
    if staged > 24 * 1024:
        return "CompilationFailedConfig"
    if c["tile_x"] == 3 and c["vector"] == 4:
        return "InvalidConfig"
    return None


def time_ms(c: dict[str, int], rng: random.Random) -> float:
    threads = c["block_x"] * c["block_y"]
    reuse = c["tile_x"] * c["tile_y"]
    traffic = 2.0 / math.sqrt(reuse) + 0.6 * (1.0 if c["staging"] == 0 else 0.35)
    coalescing = 1.0 + 0.5 * abs(math.log2(c["block_x"] * c["vector"] / 128)) / 3
    occupancy = 1.0 + 0.25 * abs(math.log2(threads / 256)) ** 1.5 / 2
    spilling = 1.0 + 0.03 * max(0, reuse * c["vector"] - 16)
    barrier = 1.0 + 0.08 * c["staging"] * (threads > 256)
    conflicts = 1.3 if c["staging"] and c["tile_x"] % 2 == 0 and c["vector"] == 1 else 1.0
    time = 1.5 * traffic * coalescing * occupancy * spilling * barrier * conflicts
    return time * rng.gauss(1.0, 0.01)


def recording() -> dict[str, Any]:
    rng = random.Random(20240607)
    cache: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*PARAMETERS.values()):
        c = dict(zip(PARAMETERS, values, strict=True))
        if is_member(c):
            time = failure(c) or round(time_ms(c, rng), 5)
            cache[",".join(map(str, values))] = {**c, "time": time, "compile_time": 250}
    return {
        "device_name": "Synthetic GPU",
        "kernel_name": "synthetic",
        "problem_size": [4096, 4096],
        "tune_params_keys": list(PARAMETERS),
        "tune_params": PARAMETERS,
        "cache": cache,
    }


def text() -> str:
    """One entry a line, as Kernel Tuner writes it while it tunes."""
    header = {name: value for name, value in recording().items() if name != "cache"}
    entries = [
        f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in recording()["cache"].items()
    ]
    return json.dumps(header, indent=0)[:-2] + ',\n"cache": {\n' + ",\n".join(entries) + "}\n}"


if __name__ == "__main__":
    FILE.write_bytes(gzip.compress(text().encode(), mtime=0))
