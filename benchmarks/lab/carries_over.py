"""Compares the speedup that a run confirmed with the speedup in a user's program.

    python benchmarks/lab/carries_over.py [--spaces attention-cpu ...] [--device cpu] [--busy 0 2]
        [--trials 12] [--programs 9] [-o FILE]

For each attention space and each number of busy processes beside it, a run confirms one champion.
Then `programs/attention_cpu.py` or `attention_cuda.py`, which use nothing of evotune, call that
champion in processes of their own. A program calls each side once, twice or five times (on a GPU
5, 20 or 100 times) in a row, in turn; `by_row` has the medians. `inside` is true when the median
over all programs lies within the confirmed interval. Where `flags` contain `too_noisy`, the run
made no statement.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.runs.folder import list_runs
from evotune.runs.reopening import ReopenedRun
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.store import RunStore
from evotune.trial import Configuration, Measurement, Outcome
from evotune.workers.executor import TIMED, CaseJob

ROOT = Path(__file__).parents[2]
ROWS = {"cpu": (1, 2, 5), "cuda": (5, 20, 100)}
"""The numbers of calls that a program makes to one side before it calls the other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--spaces", nargs="+", default=["attention-cpu", "attention-cpu-bf16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--programs", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    rows = []
    for space in arguments.spaces:
        for busy in arguments.busy:
            with tempfile.TemporaryDirectory() as folder, busy_processes(busy):
                for row in _rows(space, Path(folder), arguments):
                    rows.append({"space": space, "busy": busy, **row})
                    print(json.dumps(rows[-1]), flush=True)
            if arguments.output:
                _write(arguments.output, rows, arguments.device)


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keeps `count` processes spinning for as long as the block lasts, or this process."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(1_000_000))"
    spinning = [sys.executable, "-c", code]
    processes = [subprocess.Popen(spinning) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _rows(space: str, folder: Path, told: argparse.Namespace) -> Iterator[dict[str, Any]]:
    command = ["run", space, "--device", told.device, "--trials", str(told.trials)]
    command += ["--champions", "1", "--runs-dir", str(folder / "runs")]
    subprocess.run(
        [sys.executable, "-m", "evotune", "-q", *command],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    (run,) = list_runs(folder / "runs")
    reopened = ReopenedRun.load(run)
    with RunStore.open_for_reading(run.store) as store:
        confirmed = {n: o for n, o in store.confirmations().items() if o.ok}
        if not confirmed:
            return
        number, outcome = max(confirmed.items(), key=lambda item: item[1].fitness or 0.0)
        configuration = next(t for t in store.trials() if t.number == number).configuration
    for job in _jobs(reopened, configuration):
        measured = next(m for m in outcome.measurements if m.case == job.case.label)
        yield _row(job, folder, outcome, measured, told.programs)


def _jobs(reopened: ReopenedRun, configuration: Configuration) -> list[CaseJob]:
    proposal = reopened.planner.proposal(0, reopened.configuration(configuration))
    return [job for job in proposal.cases if job.role == TIMED]


def _row(
    job: CaseJob, folder: Path, outcome: Outcome, measured: Measurement, programs: int
) -> dict[str, Any]:
    backend = "cuda" if job.compile.language == "cuda" else "cpu"
    library = folder / f"{job.compile.key[:16]}.bin"
    compiler = NvrtcCompiler() if backend == "cuda" else CpuCompiler()
    built = compiler.compile(job.compile, library, 300.0)
    assert not isinstance(built, CompileFailure), built.log
    told = json.dumps(
        {
            "library": str(library),
            "entry": job.plan.entry,
            "symbols": dict(job.case.symbols),
            "arguments": [[a.type, a.name, a.value] for a in job.plan.arguments],
            "workspaces": [[w.name, w.bytes] for w in job.plan.workspaces],
            "launches": msgspec.to_builtins(job.plan.launches),
            "baseline": measured.baseline,
        }
    )
    program = ROOT / "benchmarks" / "programs" / f"attention_{backend}.py"
    rows = ROWS[backend]
    found: dict[int, list[float]] = {row: [] for row in rows}
    for number in range(programs):
        row = rows[number % len(rows)]
        command = [sys.executable, str(program), told, str(row)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[row].append(json.loads(done.stdout)[0])
    ratios = sorted(ratio for each in found.values() for ratio in each)
    middle = statistics.median(ratios)
    return {
        "case": job.case.label,
        "confirmed": round(measured.speedup, 3),
        "low": round(measured.speedup_low, 3),
        "high": round(measured.speedup_high, 3),
        "in_each_process": [round(s, 3) for s in measured.processes],
        "flags": list(outcome.flags),
        "in_programs": [round(ratio, 3) for ratio in ratios],
        "by_row": {row: round(statistics.median(each), 3) for row, each in found.items() if each},
        "median": round(middle, 3),
        "inside": measured.speedup_low <= middle <= measured.speedup_high,
    }


def _write(path: Path, rows: list[dict[str, Any]], device: str) -> None:
    profile = load_setup(find_space(rows[0]["space"]), device).profile
    record = {
        "command": "python benchmarks/lab/carries_over.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": profile.name,
        "cores": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "rows": rows,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
