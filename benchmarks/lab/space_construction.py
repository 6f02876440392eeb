"""Measures the time until a constrained space can be searched, here and in Kernel Tuner.

    python benchmarks/lab/space_construction.py [--repeats 3] [-o FILE]

The spaces are GEMM as Kernel Tuner's users publish it (the same 17,956 valid configurations), one
of the size and density of its hotspot, and tilings over two to four levels, of which the larger
ones are too large to enumerate. Figures are CPU-seconds, the least of the repeats, which alternate
between the two:

- ours: reading, binding and counting (exactly, where it says so), then 1000 uniform samples
- ours, all: the same, and every valid configuration as an object
- Kernel Tuner: `Searchspace(...)`, which enumerates; no figure where it cannot
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from evotune.runs.setup import load_setup
from evotune.space.bound import BoundSpace

ROOT = Path(__file__).parents[2]
MOST_ENUMERATED = 2_000_000


@dataclass(frozen=True)
class Space:
    name: str
    parameters: dict[str, list[int]]
    constraints: list[str]
    """In the language that both understand: comparisons, arithmetic, `and`, `or`."""
    published_valid: int | None = None


HOTSPOT = Space(
    "hotspot",
    {
        "BLOCK_SIZE_X": [1, 2, 4, 8, 16, *range(32, 1025, 32)],
        "BLOCK_SIZE_Y": [1, 2, 4, 8, 16, 32],
        "TILE_SIZE_X": list(range(1, 11)),
        "TILE_SIZE_Y": list(range(1, 11)),
        "TEMPORAL_TILING_FACTOR": list(range(1, 11)),
        "LOOP_UNROLL_FACTOR_T": list(range(1, 11)),
        "SH_POWER": [0, 1],
        "BLOCKS_PER_SM": [0, 1, 2, 3, 4],
    },
    [
        "BLOCK_SIZE_X * BLOCK_SIZE_Y >= 32",
        "BLOCK_SIZE_X * BLOCK_SIZE_Y <= 1024",
        "TEMPORAL_TILING_FACTOR % LOOP_UNROLL_FACTOR_T == 0",
        "BLOCK_SIZE_X * BLOCK_SIZE_Y * BLOCKS_PER_SM <= 2048",
        "(BLOCK_SIZE_X * TILE_SIZE_X + TEMPORAL_TILING_FACTOR * 2)"
        " * (BLOCK_SIZE_Y * TILE_SIZE_Y + TEMPORAL_TILING_FACTOR * 2)"
        " * (2 + SH_POWER) * 4 <= 49152",
    ],
)
GEMM = Space(
    "gemm",
    {
        "MWG": [16, 32, 64, 128],
        "NWG": [16, 32, 64, 128],
        "KWG": [32],
        "MDIMC": [8, 16, 32],
        "NDIMC": [8, 16, 32],
        "MDIMA": [8, 16, 32],
        "NDIMB": [8, 16, 32],
        "KWI": [2],
        "VWM": [1, 2, 4, 8],
        "VWN": [1, 2, 4, 8],
        "STRM": [0],
        "STRN": [0],
        "SA": [0, 1],
        "SB": [0, 1],
    },
    [
        "KWG % KWI == 0",
        "MWG % (MDIMC * VWM) == 0",
        "NWG % (NDIMC * VWN) == 0",
        "MWG % (MDIMA * VWM) == 0",
        "NWG % (NDIMB * VWN) == 0",
        "KWG * MDIMA % (MDIMC * NDIMC) == 0",
        "KWG * NDIMB % (MDIMC * NDIMC) == 0",
    ],
    17956,
)


def tiled(name: str, levels: int) -> Space:
    """A kernel tiled over several levels in three directions. Each level's tile sizes divide those
    of the level before, and the tiles fit into a cache. A parameter has 18 values, and few
    combinations of them are valid."""
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    parameters = {f"{axis}{level}": list(sizes) for level in range(levels) for axis in "MNK"}
    constraints = []
    for level in range(levels - 1):
        constraints += [f"{axis}{level} % {axis}{level + 1} == 0" for axis in "MNK"]
    for level in range(levels):
        tile = f"M{level} * K{level} + K{level} * N{level} + M{level} * N{level}"
        constraints.append(f"{tile} <= {262144 >> (4 * level)}")
    return Space(name, parameters, constraints)


SPACES = (GEMM, HOTSPOT, tiled("tiled over 2 levels", 2), tiled("tiled over 3 levels", 3),
          tiled("tiled over 4 levels", 4))  # fmt: skip


def bind(space: Space, folder: Path) -> BoundSpace:
    document = {
        "name": "space",
        "root": str(ROOT),
        "problem": {
            "name": "attention",
            "shapes": [{"batch": 1, "heads": 1, "seq_len": 64, "head_dim": 32}],
            "variants": [{"causal": False}],
        },
        "kernels": {
            "any": {
                "source": "kernels/attention/1_scalar.cpp",
                "entry": "attention_forward",
                "arguments": ["q", "k", "v", "out"],
            }
        },
        "parameters": space.parameters,
        "constraints": space.constraints,
    }
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    found = load_setup(path, "cpu").space
    assert isinstance(found, BoundSpace)
    return found


def ours(space: Space, folder: Path) -> dict[str, Any]:
    started_s = time.process_time()
    bound = bind(space, folder)
    size = bound.size()
    counted_s = time.process_time() - started_s
    rng = random.Random(0)
    bound.sample(rng)
    started_s = time.process_time()
    for _ in range(1000):
        bound.sample(rng)
    found = {
        "valid": size.valid,
        "exact": size.exact,
        "ready_s": counted_s,
        "sample_ms": time.process_time() - started_s,
    }
    if size.exact and size.valid <= MOST_ENUMERATED:
        started_s = time.process_time()
        assert sum(1 for _ in bound.enumerate()) == size.valid
        found["ready_and_all_s"] = counted_s + time.process_time() - started_s
    return found


def kernel_tuner(space: Space) -> dict[str, Any]:
    from kernel_tuner.searchspace import Searchspace

    started_s = time.process_time()
    made = Searchspace(space.parameters, list(space.constraints), max_threads=1 << 30)
    return {"valid": made.size, "ready_s": time.process_time() - started_s}


def least(measure: Callable[[], dict[str, Any]], best: dict[str, Any]) -> dict[str, Any]:
    found = measure()
    return {k: min(v, best.get(k, v)) if isinstance(v, float) else v for k, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for space in SPACES:
            mine: dict[str, Any] = {}
            peer: dict[str, Any] = {}
            for _ in range(options.repeats):
                mine = least(lambda space=space: ours(space, Path(name)), mine)  # type: ignore[misc]
                if mine["valid"] <= MOST_ENUMERATED:
                    peer = least(lambda space=space: kernel_tuner(space), peer)  # type: ignore[misc]
            cartesian = math.prod(map(len, space.parameters.values()))
            if space.published_valid is not None:
                assert mine["valid"] == space.published_valid
            if peer:
                assert mine["valid"] == peer["valid"], (mine, peer)
            rows.append({"space": space.name, "cartesian": cartesian, "evotune": mine,
                         "kernel_tuner": peer})  # fmt: skip
            print(
                f"{space.name:20} {cartesian:9.2e} {mine['valid']:9.3g} valid: ready in "
                f"{mine['ready_s']:.3f} s, a sample in {mine['sample_ms']:.3f} ms, all in "
                f"{mine.get('ready_and_all_s', math.nan):.2f} s; Kernel Tuner "
                f"{peer.get('ready_s', math.nan):.2f} s",
                flush=True,
            )
    if options.output:
        record = {
            "command": ["python", "benchmarks/lab/space_construction.py", *sys.argv[1:]],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "kernel_tuner": importlib.metadata.version("kernel_tuner"),
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "spaces": rows,
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
