"""Hardware counters of calls, by Linux's `perf stat`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from evotune.backends.base.evidence import Ceilings, Counters
from evotune.backends.base.time_limits import Tool
from evotune.backends.cpu.counted_run import LIMIT_S
from evotune.backends.cpu.cpu_profile import cpuinfo
from evotune.util.files import scratch_folder
from evotune.util.processes import module_command

_PROGRAM = "perf"
_VERSION = re.compile(r"(\d+\.\d+)")
_LINE_BYTES = 64
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
NOT_INSTALLED = "perf was not found; fix: install linux-perf (Debian) or linux-tools (Ubuntu)"
NOT_SUPPORTED = "this machine gives no hardware counters, like many virtual machines"

_INSTRUCTIONS, _CYCLES = "instructions", "cycles"
_L1_MISSES, _L3_MISSES = "L1-dcache-load-misses", "LLC-load-misses"
_EVENTS = (_INSTRUCTIONS, _CYCLES, _L1_MISSES, _L3_MISSES)
_FLOPS = {
    "fp_arith_inst_retired.512b_packed_single": 16,
    "fp_arith_inst_retired.256b_packed_single": 8,
    "fp_arith_inst_retired.128b_packed_single": 4,
    "fp_arith_inst_retired.scalar_single": 1,
}
"""Intel's counters of float32 arithmetic, with the FLOPs of each count. An FMA counts twice."""


class NotCounted(Exception):
    """Why there are no counters, in one line."""


_TOOL = Tool(_PROGRAM, LIMIT_S, NotCounted)


def find_perf() -> str:
    return shutil.which(_PROGRAM) or ""


@functools.cache
def perf_version(path: str) -> str:
    """`perf 6.1`."""
    found = _VERSION.search(_perf([path, "--version"]).stdout)
    return f"{_PROGRAM} {found[1]}" if found else _PROGRAM


def counters(kind: str, job: bytes, ceilings: Ceilings, threads: int = 0) -> Counters:
    """The counters of one call of a kernel or a baseline, in so many `threads` (0: as many as
    `cpu_profile.threads`); see `counted_run` for the first two arguments. NotCounted where there
    are none."""
    path = find_perf()
    if not path:
        raise NotCounted(NOT_INSTALLED)
    source = perf_version(path)
    intel = cpuinfo("vendor_id") == "GenuineIntel"
    with scratch_folder() as folder:
        (folder / "job").write_bytes(job)
        done = None
        if intel:
            done = _counted(path, (*_EVENTS, *_FLOPS), kind, folder, threads)
        if done is None or "event syntax error" in done.stderr:
            done = _counted(path, _EVENTS, kind, folder, threads)
        table = folder / "table"
        text = table.read_text() if table.exists() else ""
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]
    counts = read_counts(text)
    if not told:  # the program failed, and its events look like forbidden ones
        raise NotCounted(reason("", done.stderr))
    if _INSTRUCTIONS not in counts:
        raise NotCounted(reason(text, done.stderr))
    call = json.loads(told[-1])
    return _of_one_call(counts, call["calls"], call["time_us"], source, ceilings)


def permission() -> tuple[str, str]:
    """perf with its version, and why it may not count here; "" when it may."""
    path = find_perf()
    version = perf_version(path)
    done = _perf([path, "stat", "-x,", "-e", _INSTRUCTIONS, "true"])
    counts = read_counts(done.stderr)
    return version, "" if _INSTRUCTIONS in counts else reason(done.stderr, done.stderr)


def _counted(
    path: str, events: Sequence[str], kind: str, folder: Path, threads: int
) -> subprocess.CompletedProcess[str]:
    control, acknowledge = folder / "control", folder / "acknowledge"
    for pipe in (control, acknowledge):
        with contextlib.suppress(FileExistsError):
            os.mkfifo(pipe)
    program = module_command(
        "evotune.backends.cpu.counted_run", kind, *map(str, (folder / "job", control, acknowledge))
    )
    options = ["--delay=-1", "--control", f"fifo:{control},{acknowledge}"]
    options += ["-o", str(folder / "table")]
    return _perf([path, "stat", "-x,", "-e", ",".join(events), *options, "--", *program], threads)


def _perf(command: Sequence[str], threads: int = 0) -> subprocess.CompletedProcess[str]:
    wished = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    return _TOOL.run(command, {**os.environ, **wished, "LC_ALL": "C"})


def read_counts(table: str) -> dict[str, float]:
    """Event -> count, in perf's table (`-x,`). An event that was not counted is left out."""
    counts: dict[str, float] = {}
    for line in table.splitlines():
        fields = line.split(",")
        if len(fields) < 3:
            continue
        with contextlib.suppress(ValueError):
            counts[fields[2].partition(":")[0]] = float(fields[0])
    return counts


def reason(table: str, errors: str) -> str:
    """Why nothing was counted, in one line."""
    if "<not supported>" in table:
        return NOT_SUPPORTED
    if "perf_event_paranoid" in errors or "No permission" in errors or "<not counted>" in table:
        level = _PARANOID.read_text().strip() if _PARANOID.exists() else "?"
        return (
            f"this user may not read counters (perf_event_paranoid is {level}); "
            "fix: sysctl kernel.perf_event_paranoid=2"
        )
    words = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [line for line in words if not line.startswith("Events ")]
    return f"{_PROGRAM}: {told[-1]}" if told else f"{_PROGRAM} counted nothing"


def _of_one_call(
    counts: Mapping[str, float], calls: float, time_us: float, source: str, ceilings: Ceilings
) -> Counters:
    def each(event: str, unit: float = 1.0) -> float | None:
        return counts[event] / calls * unit if event in counts else None

    dram_bytes, l2_bytes = each(_L3_MISSES, _LINE_BYTES), each(_L1_MISSES, _LINE_BYTES)
    flops = sum(counts[event] / calls * worth for event, worth in _FLOPS.items() if event in counts)
    rates = (
        ("fma", flops, ceilings.fma_flops),
        ("l2", l2_bytes, ceilings.l2_bytes_per_s),
        ("dram", dram_bytes, ceilings.dram_bytes_per_s),
    )
    seconds = time_us / 1e6
    return Counters(
        source=source,
        time_us=time_us,
        pipes={name: done / seconds / peak for name, done, peak in rates if done and peak},
        stalls={},
        instructions=each(_INSTRUCTIONS),
        dram_bytes=dram_bytes,
        l2_bytes=l2_bytes,
    )
