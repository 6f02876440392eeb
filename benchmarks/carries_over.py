"""Does what a run confirmed come out again in a user's program?

    python benchmarks/carries_over.py [--spaces attention-cpu ...] [--busy 0 2] [--trials 12]
        [--programs 9] [-o FILE]

For each space and number of busy processes beside it: a run with one champion, then that champion
called from programs of their own, which know PyTorch and ctypes and nothing of evotune. Each
program takes turns between SDPA as PyTorch chooses it and the kernel, both of which allocate their
output, and prints the ratio. Programs call each side once, twice or five times in a row, in turn:
`by_row` has the medians. A line says `inside` where the median over all programs lies within the
confirmed interval, and `too_noisy` where the run made no statement. For attention on the CPU.
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

import torch

from evotune.device.cpu import CpuCompiler
from evotune.device.launch import CompileFailure
from evotune.device.profile import DeviceProfile
from evotune.engine.folder import list_runs
from evotune.engine.reopening import ReopenedRun
from evotune.execute.protocol import TIMED, CaseJob
from evotune.store import RunStore
from evotune.trial import Configuration, Measurement, Outcome

PROGRAM = """
import ctypes, json, sys, time, statistics
import torch
import torch.nn.functional as F

job = json.loads(sys.argv[1])
s = job["symbols"]
dtype = getattr(torch, s["dtype"])
q = torch.randn(s["batch"], s["heads"], s["seq_len_q"], s["head_dim"]).to(dtype)
k, v = (torch.randn(s["batch"], s["kv_heads"], s["seq_len_k"], s["head_dim"]).to(dtype)
        for _ in range(2))
kernel = getattr(ctypes.CDLL(job["library"]), job["entry"])
types = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float,
         "float64": ctypes.c_double}
scratch = {name: torch.zeros(size, dtype=torch.uint8) for name, size in job["workspaces"]}

given = {"q": q, "k": k, "v": v, **scratch}
arguments = [types[kind](value) if kind in types
             else ctypes.c_void_p(given[name].data_ptr()) if name in given else None
             for kind, name, value in job["arguments"]]
place = arguments.index(None)

def ours():
    out = torch.empty_like(q)
    arguments[place] = ctypes.c_void_p(out.data_ptr())
    kernel(*arguments)
    return out

def sdpa():
    return F.scaled_dot_product_attention(q, k, v, is_causal=s["causal"],
                                          enable_gqa=s["heads"] != s["kv_heads"])

torch.testing.assert_close(ours().float(), sdpa().float(), atol=2e-2, rtol=2e-2)

def time_us(call, count):
    started = time.perf_counter()
    for _ in range(count):
        call()
    return 1e6 * (time.perf_counter() - started) / count

time_us(sdpa, 3), time_us(ours, 3)
count = int(sys.argv[2])
ratios, mine, theirs = [], [], []
for _ in range(80):
    theirs.append(time_us(sdpa, count))
    mine.append(time_us(ours, count))
    ratios.append(theirs[-1] / mine[-1])
print(json.dumps([statistics.median(x) for x in (ratios, mine, theirs)]))
"""
ROOT = Path(__file__).parents[1]
ROWS = (1, 2, 5)
"""How often a program calls one side before it calls the other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--spaces", nargs="+", default=["attention-cpu", "attention-cpu-bf16"])
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--programs", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    rows = []
    for space in arguments.spaces:
        for busy in arguments.busy:
            with tempfile.TemporaryDirectory() as folder, busy_processes(busy):
                for row in _rows(space, Path(folder), arguments.trials, arguments.programs):
                    rows.append({"space": space, "busy": busy, **row})
                    print(json.dumps(rows[-1]), flush=True)
            if arguments.output:
                _write(arguments.output, rows)


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many that do nothing but spin, for as long as the block lasts."""
    spinning = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spinning) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _rows(space: str, folder: Path, trials: int, programs: int) -> Iterator[dict[str, Any]]:
    command = ["run", space, "--trials", str(trials), "--champions", "1"]
    subprocess.run(
        [sys.executable, "-m", "evotune", "-q", *command, "--runs-dir", str(folder / "runs")],
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
        yield _row(job, folder, outcome, measured, programs)


def _jobs(reopened: ReopenedRun, configuration: Configuration) -> list[CaseJob]:
    proposal = reopened.planner.proposal(0, reopened.configuration(configuration))
    return [job for job in proposal.cases if job.role == TIMED]


def _row(
    job: CaseJob, folder: Path, outcome: Outcome, measured: Measurement, programs: int
) -> dict[str, Any]:
    library = folder / f"{job.compile.key[:16]}.so"
    built = CpuCompiler().compile(job.compile, library, 300.0)
    assert not isinstance(built, CompileFailure), built.log
    told = json.dumps(
        {
            "library": str(library),
            "entry": job.plan.entry,
            "symbols": dict(job.case.symbols),
            "arguments": [[a.type, a.name, a.value] for a in job.plan.arguments],
            "workspaces": [[w.name, w.bytes] for w in job.plan.workspaces],
        }
    )
    found: dict[int, list[float]] = {row: [] for row in ROWS}
    for number in range(programs):
        row = ROWS[number % len(ROWS)]
        command = [sys.executable, "-c", PROGRAM, told, str(row)]
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


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    from evotune.device import cpu

    profile: DeviceProfile = cpu.profile()
    record = {
        "command": "python benchmarks/carries_over.py " + " ".join(sys.argv[1:]),
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
