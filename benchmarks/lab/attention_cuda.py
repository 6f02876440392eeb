"""Compares the CUDA attention ladder, tuned for each shape, with SDPA on one GPU.

    python benchmarks/lab/attention_cuda.py [--only NAME ...] [--dtype float16|bfloat16] [--seed 0]
        [--trials N] [--layout NAME] [--again] [--ablate] -o benchmarks/results/FILE.json
    python benchmarks/lab/attention_cuda.py --confirm benchmarks/results/FILE.json [-o OTHER.json]
        [--dtype float16|bfloat16] [--baseline NAME] [--layout NAME] [--heat SECONDS]
    python benchmarks/lab/attention_cuda.py --table benchmarks/results/FILE.json [--dtype ...]

Each job is one `evotune run` (its space, trials and seed are in the record) whose best
configuration was confirmed in a fresh process. A job's record replaces the one of the same name and
type in the file, after each job; one without a type is float16. A job that fails is told and left
out. Times are device time by CUDA graph replay, warm unless it says cold.

- --again: the search starts from the champion of the job's last record: that of the other type
  where this one has none.
- --layout: tuned on tensors that lie like this, such as blhd, against SDPA on the same tensors.
- --ablate: the record also has the worth of each choice of the champion, measured in turn with it.
- --confirm: nothing is searched. The champions of FILE go through today's confirmation, and OTHER
  says for each how it ended, in how many seconds, how fast it was, and the device's clock and power
  after its last sample. A second call with the same options continues where the first one ended.
  In a type of which FILE has no champion the other type's is confirmed.
  --baseline: against this one, such as fa4, in place of the space's. --layout: also on tensors that
  lie like this, such as blhd, in the same process. --heat: so many seconds of matrix products come
  before each champion, so that the device has reached its power limit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attention_confirmations import DEFAULT_DTYPE, Job, Shape, confirm_all, type_of
from tuning import champion, derive, environment, told, tune

from evotune.problems.attention import Attention
from evotune.problems.problem import Case

DTYPES = (DEFAULT_DTYPE, "bfloat16")
PROBLEM = Attention(DEFAULT_DTYPE)
"""Its cases, bytes and operations are those of both types."""


def square(batch: int, heads: int, length: int, head_dim: int) -> Shape:
    return (batch, heads, heads, length, length, head_dim)


FULL, CAUSAL, BOTH = (False,), (True,), (False, True)
MISSION = square(1, 8, 512, 64)
SMALL_TILES = {"BLOCK_M": 32, "BLOCK_N": 128, "WARPS_Q": 2, "WARPS_KV": 2}
WIDE_TILES = {"BLOCK_M": 64, "BLOCK_N": 256, "WARPS_Q": 4, "WARPS_KV": 2}
LONG = {"BLOCK_N": 64, "WARPS_KV": 4, "STAGES": 4, "V_WAIT": "early", "Q_IN_REGS": True}
LONG |= {"SPLIT_KV": 16, "PACK_GQA": True}
SINGLE = {"BLOCK_N": 256, "WARPS_KV": 4, "STAGES": 1, "Q_IN_REGS": True, "SPLIT_KV": 16}
DECODE = "attention_mma_decode"
HOPPER_128 = {"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 128, "STAGES": 2, "QUERY_STAGES": 1}
HOPPER_128 |= {"PRODUCER_WARPS": 4, "PRODUCER_REGISTERS": 24, "OVERLAP": True, "PING_PONG": True}
HOPPER_128 |= {"RESCALE_LOG2": 8, "PERSISTENT": 1, "HEAD_SECTION": 16, "ROW_ORDER": "descending"}
HOPPER_ONE_WAVE = {**HOPPER_128, "PERSISTENT": 0, "ROW_ORDER": "ascending"}
HOPPER_SMALL = {"CONSUMER_WARPGROUPS": 1, "BLOCK_N": 128, "STAGES": 2, "PRODUCER_WARPS": 1}
HOPPER_SMALL |= {"PRODUCER_REGISTERS": 24, "PING_PONG": False, "SPLIT_KV": 2, "STORE": "direct"}
HOPPER_SMALL |= {"PERSISTENT": 0, "QUERY_STAGES": 1, "WALK": "straight", "HEAD_SECTION": 1}
HOPPER = (
    ("hopper 16x2048x64", square(16, 16, 2048, 64), {}),
    ("hopper 4x4096x64", square(4, 16, 4096, 64), {}),
    ("hopper 2x8192x64", square(2, 16, 8192, 64), {}),
    ("hopper 16x2048x128", square(16, 16, 2048, 128), HOPPER_128),
    ("hopper 2x8192x128", square(2, 16, 8192, 128), HOPPER_128),
    ("hopper 4x1024x64", square(4, 16, 1024, 64), {}),
    ("hopper 1x2048x64", square(1, 8, 2048, 64), HOPPER_ONE_WAVE),
    ("hopper 1x1024x64", square(1, 8, 1024, 64), HOPPER_SMALL),
    ("hopper 1x512x64", MISSION, HOPPER_SMALL),
)
JOBS = (
    Job("mission full", "attention_mma", MISSION, FULL, 200),
    Job("mission causal", "attention_mma", MISSION, CAUSAL, 200),
    Job("decode 8x4096", DECODE, (8, 32, 8, 1, 4096, 128), FULL, 120),
    Job("decode 1x8192", DECODE, (1, 32, 8, 1, 8192, 128), FULL, 100, LONG),
    Job("decode 1x4096", DECODE, (1, 8, 8, 1, 4096, 64), FULL, 100, SINGLE),
    Job("large", "attention_mma_large", square(16, 16, 2048, 64), BOTH, 40),
    Job("wmma", "attention_wmma", MISSION, BOTH, 100),
    Job("scalar", "attention_scalar", MISSION, BOTH, 80),
    Job("1024", "attention_mma", square(1, 8, 1024, 64), BOTH, 80, WIDE_TILES),
    Job("batch 2", "attention_mma", square(2, 8, 512, 64), BOTH, 80, WIDE_TILES),
    Job("head 128", "attention_mma", square(1, 8, 512, 128), BOTH, 80, SMALL_TILES),
    Job("2048", "attention_mma", square(1, 8, 2048, 64), BOTH, 80, WIDE_TILES),
    Job("tma 16x2048x64 full", "attention_tma", square(16, 16, 2048, 64), FULL, 80),
    Job("tma 16x2048x64 causal", "attention_tma", square(16, 16, 2048, 64), CAUSAL, 80),
    *(
        Job(f"{name} {'causal' if mask[0] else 'full'}", "attention_wgmma", shape, mask, 120, start)
        for name, shape, start in HOPPER
        for mask in (FULL, CAUSAL)
    ),
)
JOBS_BY_NAME = {job.name: job for job in JOBS}
LADDERS = (("scalar", "wmma", "mission {}"), ("large", "tma 16x2048x64 {}", "hopper 16x2048x64 {}"))
"""Rungs at the same shape, slowest first."""


def run(job: Job, dtype: str, seed: int, *, ablate: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        changes: dict[str, Any] = {"problem": {**job.problem(), "dtype": dtype}}
        changes |= {"default": job.start} if job.start else {}
        path = derive(job.space, changes, Path(folder) / "space.yaml")
        options = ["--trials", str(job.trials), "--seed", str(seed), "--device", "cuda:0"]
        report = tune(path, Path(folder), *options)
        found = {"ablation": told("ablate", Path(folder))} if ablate else {}
    best = champion(report)
    return {
        "name": job.name,
        "space": job.space,
        "dtype": dtype,
        **({"layout": job.layout} if job.layout else {}),
        "seed": seed,
        "trials": len(report["trials"]),
        "ok_trials": sum(trial["outcome"] == "ok" for trial in report["trials"]),
        "seconds": max(trial["finished_s"] or 0 for trial in report["trials"]),
        "trial": best["number"],
        "configuration": best["configuration"],
        "resources": best["resources"],
        "measurements": best["measurements"],
        "baselines": report["baseline"],
        **found,
        "environment": environment(report),
    }


def case_of(job: Job, causal: bool) -> Case:
    return PROBLEM.case(job.sizes(), {"causal": causal})


Record = dict[str, Any]
Records = dict[str, Record]
"""The records of one type, by name."""


def measurement(
    records: Records, name: str, causal: bool, cache: str = "warm", held_out: bool = False
) -> dict[str, Any] | None:
    wanted = (held_out, cache)
    mask = "causal" if causal else "full"
    for found in records.get(name, {}).get("measurements", ()):
        if (found["held_out"], found["cache"]) == wanted and found["case"].endswith(mask):
            return dict(found)
    return None


def table(records: Records) -> list[str]:
    """Markdown tables: the fastest champion of each shape and mask, then the rungs side by side."""
    lines = [
        "| shape (batch, heads, length, head_dim), mask | SDPA µs | evotune µs | rung "
        "| speedup [95%] | TFLOP/s "
        "| of copy bandwidth | cold speedup | same configuration, held-out shape |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    speedups = []
    for job, causal, warm in fastest(records):
        cold = measurement(records, job.name, causal, "cold")
        other = measurement(records, job.name, causal, held_out=True)
        case = case_of(job, causal)
        copied = records[job.name]["baselines"]["copy_gbps"]
        shares = [
            f"{PROBLEM.bytes_moved(case) / found['time_us'] / 1000 / copied:.0%} {cache}"
            for cache, found in (("warm", warm), ("cold", cold))
            if found is not None
        ]
        rate = PROBLEM.flops(case) / warm["time_us"] / 1e6
        lines.append(
            f"| {case.label} | {warm['baseline']} {warm['baseline_us']:.2f} "
            f"| {warm['time_us']:.2f} | {rung(job)} | {ratio(warm)} | {rate:.0f} "
            f"| {', '.join(shares) if job.space == DECODE else ''} "
            f"| {ratio(cold) if cold else ''} "
            f"| {label_and_speedup(other) if other else ''} |"
        )
        speedups.append(warm["speedup"])
    if speedups:
        mean = statistics.geometric_mean(speedups)
        lines += ["", f"Geometric mean of the {len(speedups)} rows: {mean:.2f}×"]
    lines += ["", "| shape, mask, rung | µs | vs SDPA [95%] | vs the rung before |"]
    lines += ["|---|---|---|---|"]
    for names in LADDERS:
        for causal in BOTH:
            before = 0.0
            for job in (
                JOBS_BY_NAME[name.format("causal" if causal else "full")] for name in names
            ):
                warm = measurement(records, job.name, causal)
                if warm is None:
                    continue
                gain = f"{before / warm['time_us']:.1f}×" if before else ""
                label = f"{case_of(job, causal).label}, {rung(job)}"
                lines.append(f"| {label} | {warm['time_us']:.2f} | {ratio(warm)} | {gain} |")
                before = warm["time_us"]
    return lines


def fastest(records: Records) -> Iterator[tuple[Job, bool, dict[str, Any]]]:
    """For each shape and mask, the job whose champion has the greatest speedup."""
    found: dict[str, tuple[Job, bool, dict[str, Any]]] = {}
    for job in JOBS:
        for causal in job.masks:
            warm = measurement(records, job.name, causal)
            label = case_of(job, causal).label
            if warm and (label not in found or warm["speedup"] > found[label][2]["speedup"]):
                found[label] = (job, causal, warm)
    yield from found.values()


def rung(job: Job) -> str:
    return job.space.split("_")[1]


def label_and_speedup(found: dict[str, Any]) -> str:
    return f"{found['case'].rpartition(' ')[0]} {found['speedup']:.2f}×"


def ratio(found: dict[str, Any]) -> str:
    low, high = found["speedup_low"], found["speedup_high"]
    return f"{found['speedup']:.2f}× [{low:.2f}, {high:.2f}]"


class RecordFile:
    """The records of FILE, by name and type. The command and the note that FILE has are kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._data: Record = json.loads(path.read_text()) if path and path.exists() else {}
        self._records: dict[tuple[str, str], Record] = {
            (record["name"], type_of(record)): record for record in self._data.get("jobs", [])
        }

    def of(self, dtype: str) -> Records:
        return {name: record for (name, kind), record in self._records.items() if kind == dtype}

    def nearest(self, dtype: str) -> Records:
        """The records of the type, and of the other one for jobs that have none."""
        (other,) = (each for each in DTYPES if each != dtype)
        return {**self.of(other), **self.of(dtype)}

    def keep(self, record: Record) -> None:
        """Replaces the record of the same name and type, and writes the file."""
        self._records[record["name"], record["dtype"]] = record
        if self._path is not None:
            command = f"python benchmarks/lab/attention_cuda.py --seed {record['seed']}"
            jobs = list(self._records.values())
            self._data = {"command": command, **self._data, "jobs": jobs}
            self._path.write_text(json.dumps(self._data, indent=1) + "\n")


def load(path: Path | None, dtype: str = DEFAULT_DTYPE) -> Records:
    return RecordFile(path).of(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[job.name for job in JOBS])
    parser.add_argument("--dtype", choices=DTYPES, default=DEFAULT_DTYPE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--ablate", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--confirm", type=Path)
    parser.add_argument("--baseline", default="", help="of --confirm")
    parser.add_argument("--layout", default="")
    parser.add_argument("--heat", type=float, default=0.0, metavar="SECONDS", help="of --confirm")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    dtype = options.dtype
    if options.confirm:
        confirm_all(JOBS, RecordFile(options.confirm).nearest(dtype), options)
        return
    file = RecordFile(options.table or options.output)
    for job in () if options.table else JOBS:
        if options.only and job.name not in options.only:
            continue
        known = file.nearest(dtype).get(job.name, {}) if options.again else {}
        start = known.get("configuration") or job.start
        trials = options.trials or job.trials
        asked = dataclasses.replace(job, trials=trials, start=start, layout=options.layout)
        try:
            file.keep(run(asked, dtype, options.seed, ablate=options.ablate))
        except (subprocess.CalledProcessError, ValueError) as error:  # the others go on
            print(f"{job.name}, {dtype}: no champion: {error}", file=sys.stderr)
    print("\n".join(table(file.of(dtype))))


if __name__ == "__main__":
    main()
