"""Measures a processor's ceilings with the loops of `ceilings.cpp`. Runs as a separate process.

It runs as `python -m evotune.backends.cpu.cpu_ceiling_run` and prints the figures of `Ceilings` as
one line of JSON. It uses as many threads as kernels do.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cpu import cpu_profile
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.errors import EnvironmentProblem
from evotune.util.files import scratch_folder

LIMIT_S = 90.0
SOURCE = "ceilings.cpp"
_FMA_ROUNDS = 200_000  # about a millisecond
_READ_BYTES = 32 << 20  # of each thread in a run
_LEAST_COPY_BYTES, _MOST_COPY_BYTES = 64 << 20, 512 << 20
_REGIONS = 200


def job() -> CompileJob:
    """The compilation of the loops for this processor."""
    profile = cpu_profile.profile()
    defines = (("SIMD_BYTES", int(profile.attributes["simd_bytes"])),)
    folder = str(Path(__file__).parent)
    return CompileJob("cpp", folder, SOURCE, defines, (), profile.arch, "")


def measure(library: Any) -> dict[str, float]:
    """The figures, by the fields of `Ceilings`. The rate of a copy is left out if the copy fits
    into a very large L3, because it is then not the memory's rate."""
    for name in ("fma_rate", "read_rate", "copy_rate", "region_seconds"):
        getattr(library, name).restype = ctypes.c_double
    device = cpu_profile.profile().attributes
    l2_bytes = int(device["l2_bytes"]) // 2
    copied = min(_MOST_COPY_BYTES, max(_LEAST_COPY_BYTES, 4 * int(device["l3_bytes"])))
    rounds = max(1, _READ_BYTES // l2_bytes)
    found = {
        "fma_flops": library.fma_rate(ctypes.c_long(_FMA_ROUNDS)),
        "l2_bytes_per_s": library.read_rate(ctypes.c_long(l2_bytes), ctypes.c_long(rounds)),
        "launch_us": library.region_seconds(ctypes.c_long(_REGIONS)) * 1e6,
    }
    if 2 * copied > int(device["l3_bytes"]):
        found["dram_bytes_per_s"] = library.copy_rate(ctypes.c_long(copied))
    return {name: float(value) for name, value in found.items() if value > 0}


def main() -> None:
    signal.alarm(round(LIMIT_S))
    count = cpu_profile.threads()
    os.sched_setaffinity(0, cpu_profile.cpus_of_cores(count))
    os.environ["OMP_NUM_THREADS"] = str(count)  # before OpenMP's runtime is loaded
    with scratch_folder() as folder:
        output = folder / "ceilings.so"
        try:
            built = CpuCompiler().compile(job(), output, LIMIT_S)
        except EnvironmentProblem as error:
            sys.exit(str(error))
        if isinstance(built, CompileFailure):
            sys.exit(f"the compiler refuses {SOURCE}: {built.reason}")
        print(json.dumps(measure(ctypes.CDLL(str(output)))), flush=True)


if __name__ == "__main__":
    main()
