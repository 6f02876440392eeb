"""Hardware counters of launches, by Nsight Compute (`ncu`).

ncu runs a program that launches a case, and replays each launch until it has all counters. The
clocks stay as they are, and so do the caches, since a kernel is timed warm.
"""

from __future__ import annotations

import csv
import functools
import glob
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evotune.backends.base.evidence import Counters
from evotune.backends.base.time_limits import Tool
from evotune.util.processes import module_command

LIMIT_S = 120.0
"""The time limit on the profiler in s. A profiler that runs longer is stopped, and there are no
counters then."""

_PROGRAM = "ncu"
_INSTALLED = "/opt/nvidia/nsight-compute/*/ncu"
_VERSION = re.compile(r"Version (\d+\.\d+)")
_ERROR = re.compile(r"^==ERROR== *(.+)$", re.MULTILINE)
_HEADER = '"ID",'
_PROGRAM_FAILED = "application returned an error code"
_TOLD_LINES = 2
_FORBIDDEN = "ERR_NVGPUCTRPERM"
FORBIDDEN = (
    f"{_FORBIDDEN}: this user may not read the GPU's counters; fix: run as root (a container: with "
    "--cap-add SYS_ADMIN), or have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0"
)
NOT_INSTALLED = (
    "Nsight Compute (ncu) was not found; fix: install it with the CUDA toolkit, or put its folder "
    "on PATH"
)
_SECTIONS = (
    *("SpeedOfLight", "ComputeWorkloadAnalysis", "WarpStateStats", "SchedulerStats"),
    *("MemoryWorkloadAnalysis", "LaunchStats", "Occupancy"),
)
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
_IDEAL, _ACTUAL = "memory_l1_wavefronts_shared_ideal", "memory_l1_wavefronts_shared"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
_METRICS = (
    *("smsp__inst_executed.sum", "dram__bytes.sum", "lts__t_bytes.sum", _CONFLICTS),
    *(f"{_WAVEFRONTS}.sum", f"{_WAVEFRONTS}.avg.pct_of_peak_sustained_elapsed", _IDEAL, _ACTUAL),
)
_PIPES = {
    "tensor": ("sm__pipe_tensor_cycles_active", "sm__inst_executed_pipe_tensor"),
    "fma": ("sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma"),
    "alu": ("sm__pipe_alu_cycles_active", "sm__inst_executed_pipe_alu"),
    "mufu": ("sm__inst_executed_pipe_xu",),
    "lsu": ("sm__inst_executed_pipe_lsu",),
    "issue": ("smsp__issue_active", "sm__inst_issued"),
    "l2": ("lts__throughput",),
    "dram": ("gpu__dram_throughput", "dram__throughput"),
    "shared": (_WAVEFRONTS, "l1tex__data_pipe_lsu_wavefronts"),
}
"""The pipe -> ncu's metrics for it; names differ between its versions and GPUs."""
_WHOLE_TIME = ("l2", "dram")  # beside the multiprocessors: their shares are over the whole time
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active")
_NOT_STALLS = ("selected", "not_selected")
_UNITS = {
    **{"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3},
    **{"s": 1.0, "second": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9},
}


class NoCounters(Exception):
    """Raised if there are no counters. The message is the reason, one line."""


_TOOL = Tool(_PROGRAM, LIMIT_S, NoCounters)


@dataclass(frozen=True, slots=True)
class ProfiledLaunch:
    """A launch in the profiler's output. `grid` and `block` are in blocks and in threads."""

    kernel: str
    grid: int
    block: int
    registers: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    counters: Counters


def find_ncu() -> str:
    """ncu's path: on PATH, in a CUDA toolkit or in its own package; "" if it is not found."""
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = os.pathsep.join(f"{root}/bin" for root in roots if root)
    found = (shutil.which(_PROGRAM), shutil.which(_PROGRAM, path=folders))
    paths = (*found, max(glob.glob(_INSTALLED), default=""))
    return next((path for path in paths if path and not _is_another(path)), "")


def _is_another(path: str) -> bool:
    """Whether it is another program of the same name, such as npm-check-updates."""
    try:
        return not ncu_version(path)
    except NoCounters:
        return False


@functools.cache
def ncu_version(path: str) -> str:
    """ncu's name and version, such as `ncu 2025.3`; "" if it reports no version. Raises NoCounters
    if it fails."""
    found = _VERSION.search(_TOOL.output([path, "--version"]))
    return f"{_PROGRAM} {found[1]}" if found else ""


def profile(
    module: str, job: str, environment: Mapping[str, str], *, only: str = ""
) -> list[ProfiledLaunch]:
    """The launches that the program `module` makes between the start and the stop of its profiler.
    The program gets the path of its job and runs in this environment. With `only`, just that metric
    is read, which is quick. Raises NoCounters if ncu cannot read them."""
    path = find_ncu()
    if not path:
        raise NoCounters(NOT_INSTALLED)
    source = ncu_version(path)
    command = [path, "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    command += ["--kernel-name-base", "function"]
    program = module_command(module, job)
    if only:
        ways = [[*command, "--metrics", only]]
    else:
        for section in _SECTIONS:
            command += ["--section", section]
        # An ncu that does not know one of the metrics profiles nothing.
        ways = [[*command, "--metrics", ",".join(_METRICS)], command]
    refusal = ""
    for way in ways:
        done = _TOOL.run([*way, *program], environment)
        if launches := read_launches(done.stdout, source):
            return launches
        refusal = refusal or reason(done.stdout + done.stderr, done.returncode)
        if refusal == FORBIDDEN:
            break
    raise NoCounters(refusal)


def reason(output: str, status: int) -> str:
    """Why ncu's output has no launch, in one line."""
    if _FORBIDDEN in output:
        return FORBIDDEN
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip("= ")]
    own = [line for line in lines if not line.startswith("==")]
    if found := _ERROR.search(output):
        said = f"{_PROGRAM}: {' '.join(found[1].split())}"
        # The lines before this one are the program's; its last ones tell why it failed.
        told = "; ".join(own[-_TOLD_LINES:]) if _PROGRAM_FAILED in found[1] else ""
        return f"{said} The program said: {told}" if told else said
    said = lines[-1] if lines else f"it ended with status {status}"
    return f"{_PROGRAM} saw no launch: {said}"


# --- Reads ncu's table (`--csv --page raw`): a line of names, a line of units, then the launches --


def read_launches(output: str, source: str) -> list[ProfiledLaunch]:
    """The launches in ncu's output, in their order; none if it has no table."""
    rows = _table(output.splitlines())
    if len(rows) < 2:
        return []
    units, *launches = rows
    return [_launch(row, _values(row, units), source) for row in launches]


def _table(lines: Iterable[str]) -> list[dict[str, str]]:
    """The units and the launches by the names of their columns. Before and among the lines of the
    table are those of ncu and of the program."""
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith('"' if rows else _HEADER):
            row = next(csv.reader([line]))
            if not rows or len(row) == len(rows[0]):
                rows.append(row)
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def _values(row: Mapping[str, str], units: Mapping[str, str]) -> dict[str, float]:
    """Metric -> value, in seconds, bytes and percent. A metric that the GPU lacks is left out."""
    values: dict[str, float] = {}
    for name, text in row.items():
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            continue
        if name and math.isfinite(value):
            values[name] = value * _UNITS.get(units[name].partition("/")[0], 1.0)
    return values


def _launch(row: Mapping[str, str], values: Mapping[str, float], source: str) -> ProfiledLaunch:
    def whole(name: str) -> int:
        return round(values.get(name, 0.0))

    return ProfiledLaunch(
        kernel=row.get("Kernel Name", "").strip('"'),
        grid=_product(row.get("Grid Size")) or whole("launch__grid_size"),
        block=_product(row.get("Block Size")) or whole("launch__block_size"),
        registers=whole("launch__registers_per_thread"),
        static_shared_bytes=whole("launch__shared_mem_per_block_static"),
        dynamic_shared_bytes=whole("launch__shared_mem_per_block_dynamic"),
        counters=_counters(values, source),
    )


def _product(extents: str | None) -> int:
    """The product of the sizes in `(16, 8, 1)`; 0 if there are none."""
    numbers = re.findall(r"\d+", extents or "")
    return math.prod(map(int, numbers)) if numbers else 0


def _counters(values: Mapping[str, float], source: str) -> Counters:
    busy = _busy(values)
    pipes = {
        pipe: _share(values, names, 1.0 if pipe in _WHOLE_TIME else busy or 1.0)
        for pipe, names in _PIPES.items()
    }
    stalls = {found[1]: value for name, value in values.items() if (found := _STALL.match(name))}
    registers = values.get("launch__registers_per_thread")
    active = values.get("sm__warps_active.avg.pct_of_peak_sustained_active")
    return Counters(
        source=source,
        time_us=_first(values, ("gpu__time_duration.sum", "gpu__time_duration.avg")) * 1e6,
        pipes={pipe: share for pipe, share in pipes.items() if share is not None},
        stalls={name: value for name, value in stalls.items() if name not in _NOT_STALLS},
        instructions=values.get("smsp__inst_executed.sum"),
        shared_wavefronts=values.get(_ACTUAL, values.get(f"{_WAVEFRONTS}.sum")),
        shared_conflicts=_conflicts(values),
        dram_bytes=values.get("dram__bytes.sum"),
        l2_bytes=values.get("lts__t_bytes.sum"),
        registers=None if registers is None else round(registers),
        warps_active=None if active is None else active / 100,
        multiprocessors_busy=busy,
    )


def _busy(values: Mapping[str, float]) -> float | None:
    """The share of the time in which a multiprocessor has work: its issue rate over the whole time,
    by that while it has work."""
    whole = values.get("sm__issue_active.avg.pct_of_peak_sustained_elapsed")
    working = values.get("smsp__issue_active.avg.pct_of_peak_sustained_active")
    return whole / working if whole is not None and working else None


def _first(values: Mapping[str, float], names: Iterable[str]) -> float:
    return next((values[name] for name in names if name in values), 0.0)


def _share(values: Mapping[str, float], metrics: Iterable[str], busy: float) -> float | None:
    """A pipe's share of its peak, 0 to 1, while there is work, which is `busy` of the time. ncu
    gives some shares over the whole time only."""
    for metric in metrics:
        for over in ("active", "elapsed"):
            name = f"{metric}.avg.pct_of_peak_sustained_{over}"
            if name in values:
                share = values[name] / 100
                return min(1.0, share / busy) if over == "elapsed" else share
    return None


def _conflicts(values: Mapping[str, float]) -> float | None:
    """Wavefronts beyond the ideal, by instruction if they are known so, because ncu's counter of
    bank conflicts also includes waits for other traffic."""
    if _ACTUAL in values and _IDEAL in values:
        return max(0.0, values[_ACTUAL] - values[_IDEAL])
    return values.get(_CONFLICTS)
