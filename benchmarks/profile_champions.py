"""Shows what limits a champion: busy pipes, issue slots and stall reasons, by NVIDIA's ncu.

    python benchmarks/profile_champions.py RECORD [--only NAME ...] [-o PROFILE]
    python benchmarks/profile_champions.py --table benchmarks/results/profile_h200.json

RECORD is a file of `attention_cuda.py`. Each champion in it is compiled again and launched once
under ncu, with the clocks left as they are, on normal inputs of its own shape. Shares are of the
peak while the kernel runs. A stall is the mean number of cycles for which a warp waits, for that
reason, between two instructions.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attention_cuda import JOBS_BY_NAME, PROBLEM, Job, load
from tuning import derive

from evotune.backends.backend import SanitizedCase
from evotune.backends.cuda.tool_messages import SanitizedLaunches
from evotune.device.channel import encode
from evotune.device.launch import Binary
from evotune.engine.setup import load_kernel_setup
from evotune.execute.build_cache import BuildCache, default_cache_dir
from evotune.execute.compile_worker import build
from evotune.execute.executor import TIMED
from evotune.trial import Configuration

_SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "WarpStateStats", "SchedulerStats")
_SECTIONS += ("MemoryWorkloadAnalysis", "LaunchStats", "Occupancy")
_KEPT = re.compile(
    r"(pipe_.*|issue_active|throughput)\.avg\.pct|issue_stalled_.*_per_issue_active"
    r"|registers_per_thread$|warps_active\.avg|time_duration\.avg|gpc__cycles_elapsed\.avg"
)
_PIPES = {
    "tensor": "sm__pipe_tensor_cycles_active",
    "XU": "sm__inst_executed_pipe_xu",
    "ALU": "sm__pipe_alu_cycles_active",
    "FMA": "sm__pipe_fma_cycles_active",
    "L2": "lts__throughput",
    "DRAM": "gpu__dram_throughput",
}
_STALL = re.compile(r"issue_stalled_(\w+?)_per_issue_active")
_LIMIT_S = 120.0


def launch_file(job: Job, configuration: Mapping[str, Any], folder: Path) -> Path:
    """Writes the configuration's launches on its timed cases into a file, which
    `evotune.backends.cuda.sanitized_launch` reads; the file's path."""
    space = derive(job.space, {"problem": job.problem()}, folder / "space.yaml")
    setup = load_kernel_setup(space, "cuda:0")
    # A parameter that is newer than the champion has no effect at its default.
    values = {**setup.planner.bound.default(), **configuration}
    proposal = setup.planner.proposal(0, Configuration(values))
    cache = BuildCache(default_cache_dir())
    cases = []
    for item in proposal.cases:
        if item.role != TIMED:
            continue
        binary = build(item.compile, cache, folder, 120.0)
        assert isinstance(binary, Binary), binary
        plan = item.plan.completed(binary.resources)
        cases.append(SanitizedCase(binary.path, plan, tuple(PROBLEM.tensors(item.case))))
    path = folder / "job"
    path.write_bytes(encode(SanitizedLaunches(tuple(cases), poison=False)))
    return path


def profile(job: Job, configuration: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The kept metrics of each timed case, by ncu's names, with their units."""
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        sys.exit("ncu is not installed")
    with tempfile.TemporaryDirectory() as name:
        program = [sys.executable, "-m", "evotune.backends.cuda.sanitized_launch"]
        program.append(str(launch_file(job, configuration, Path(name))))
        command = [ncu, "--clock-control", "none", "--csv", "--page", "raw"]
        for section in _SECTIONS:
            command += ["--section", section]
        done = subprocess.run(
            [*command, *program], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        sys.exit(f"ncu saw no launch:\n{done.stdout}{done.stderr}")
    units, *launches = csv.DictReader(lines)
    return [
        {
            "kernel": launch["Kernel Name"],
            "metrics": {
                metric: {"value": number(value), "unit": units[metric]}
                for metric, value in launch.items()
                if _KEPT.search(metric) and number(value)
            },
        }
        for launch in launches
    ]


def number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def table(records: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"| champion | µs | MHz | {' | '.join(_PIPES)} | issue slots | multiprocessors busy "
        "| registers | stalls, cycles an instruction |",
        "|---|---|---|" + "---|" * (len(_PIPES) + 4),
    ]
    for record in records:
        for launch in record["launches"]:
            values = {name: found["value"] for name, found in launch["metrics"].items()}
            active = values["smsp__issue_active.avg.pct_of_peak_sustained_active"]
            elapsed = values["sm__issue_active.avg.pct_of_peak_sustained_elapsed"]
            merge = ", merge" if launch["kernel"] == "attention_merge" else ""
            cells = [
                record["name"] + merge,
                f"{values['gpu__time_duration.avg'] / 1e3:.1f}",
                f"{values['gpc__cycles_elapsed.avg.per_second'] / 1e6:.0f}",
                *(f"{share(values, name):.0f}%" for name in _PIPES.values()),
                f"{share(values, 'smsp__issue_active'):.0f}%",
                f"{elapsed / active:.0%}",
                f"{values['launch__registers_per_thread']:.0f}",
                largest_stalls(values),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def share(values: Mapping[str, float], name: str) -> float:
    """A unit's share of its peak, in percent, while it has work; L2 and DRAM: over the whole
    time."""
    over = (f"{name}.avg.pct_of_peak_sustained_{over}" for over in ("active", "elapsed"))
    return next((values[metric] for metric in over if metric in values), 0.0)


def largest_stalls(values: Mapping[str, float]) -> str:
    stalls = {
        match.group(1): value
        for name, value in values.items()
        if (match := _STALL.search(name)) and match.group(1) not in ("selected", "not_selected")
    }
    chosen = sorted(stalls.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{name} {value:.1f}" for name, value in chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", choices=list(JOBS_BY_NAME))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.table.read_text())["champions"])))
        return
    if options.record is None:
        parser.error("a RECORD of attention_cuda.py is needed")
    found: list[dict[str, Any]] = []
    for name, record in load(options.record).items():
        if options.only and name not in options.only:
            continue
        launches = profile(JOBS_BY_NAME[name], record["configuration"])
        found.append({"name": name, "configuration": record["configuration"], "launches": launches})
        if options.output:
            data = {
                "command": f"python benchmarks/profile_champions.py {options.record.name}",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "device": record["environment"]["device"],
                "champions": found,
            }
            options.output.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
