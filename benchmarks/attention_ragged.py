"""Compares the kernels for paged and packed sequences, tuned for each shape, with SDPA on one GPU.

    python benchmarks/attention_ragged.py [--only NAME ...] [--dtype float16|bfloat16]
        [--trials N] [--seed 0] -o benchmarks/results/FILE.json
    python benchmarks/attention_ragged.py --table benchmarks/results/FILE.json

Each job is one `evotune run` whose best configuration was confirmed in a fresh process; its record
replaces the one of the same name and type in the file. Times are device time by CUDA graph replay,
warm unless it says cold. SDPA's keys are gathered, or its batch is padded, before its time begins.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuning import champion, derive, environment, tune

from evotune.problems import create_problem

ROOT = Path(__file__).parents[1]
Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    name: str
    space: str
    shape: dict[str, Any]
    causal: bool
    trials: int = 100


def paged(
    sequences: int, longest: int, page_size: int, *, queries: int = 1, even: bool = True
) -> Any:
    """32 heads over 8 kv heads of 128. Not even: the n-th longest has 1/n of the longest."""
    shape = {"sequences": sequences, "queries": queries, "heads": 32, "kv_heads": 8}
    lengths = "even" if even else "zipf"
    return {
        **shape,
        "longest": longest,
        "page_size": page_size,
        "head_dim": 128,
        "lengths": lengths,
    }


def packed(head_dim: int) -> Any:
    """32 sequences of 4,096, 2,048, 1,365, …, 132 and 64 rows."""
    tokens, longest = 16549, 4096
    shape = {"sequences": 32, "heads": 16, "tokens_q": tokens, "tokens_k": tokens}
    return {**shape, "longest_q": longest, "longest_k": longest, "head_dim": head_dim}


PAGED, VARLEN = "attention_paged", "attention_varlen"
JOBS = (
    Job("decode 8x4096 pages 16", PAGED, paged(8, 4096, 16), True),
    Job("decode 8x4096 pages 64", PAGED, paged(8, 4096, 64), True),
    Job("decode 1x8192 pages 16", PAGED, paged(1, 8192, 16), True),
    Job("decode 16 uneven pages 16", PAGED, paged(16, 16384, 16, even=False), True),
    Job("four queries 4x8192 pages 16", PAGED, paged(4, 8192, 16, queries=4), True),
    Job("decode 8x4096 pages 1", PAGED, paged(8, 4096, 1), True, 60),
    Job("decode 8x4096 pages 256", PAGED, paged(8, 4096, 256), True, 60),
    Job("packed 64", VARLEN, packed(64), True),
    Job("packed 128", VARLEN, packed(128), True),
)


def run(job: Job, dtype: str, trials: int, seed: int) -> Record:
    with tempfile.TemporaryDirectory() as folder:
        problem = {"dtype": dtype, "shapes": [job.shape], "held_out": []}
        problem["variants"] = [{"causal": job.causal}]
        path = derive(job.space, {"problem": problem}, Path(folder) / "space.yaml")
        options = ["--trials", str(trials), "--seed", str(seed), "--device", "cuda:0"]
        report = tune(path, Path(folder), *options)
    best = champion(report)
    return {
        "name": job.name,
        "dtype": dtype,
        "seed": seed,
        "trials": len(report["trials"]),
        "ok_trials": sum(trial["outcome"] == "ok" for trial in report["trials"]),
        "trial": best["number"],
        "configuration": best["configuration"],
        "resources": best["resources"],
        "measurements": best["measurements"],
        "baselines": report["baseline"],
        "environment": environment(report),
    }


def table(records: list[Record]) -> list[str]:
    lines = [
        "| shape, type | SDPA µs | evotune µs | speedup [95%] | of copy bandwidth | TFLOP/s |",
        "|---|---|---|---|---|---|",
    ]
    jobs = {job.name: job for job in JOBS}
    for record in records:
        job = jobs[record["name"]]
        problem = create_problem(job.space, record["dtype"], ROOT)
        case = problem.case(job.shape, {"causal": job.causal})
        copied = record["baselines"]["copy_gbps"]
        for found in record["measurements"]:
            microseconds = found["time_us"]
            share = problem.bytes_moved(case) / microseconds / 1000 / copied
            lines.append(
                f"| {job.name}, {record['dtype']}, {found['cache']} "
                f"| {found['baseline']} {found['baseline_us']:.2f} | {microseconds:.2f} "
                f"| {found['speedup']:.2f}× [{found['speedup_low']:.2f}, "
                f"{found['speedup_high']:.2f}] | {share:.0%} "
                f"| {problem.flops(case) / microseconds / 1e6:.0f} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[job.name for job in JOBS])
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    path = options.table or options.output
    records: list[Record] = json.loads(path.read_text())["jobs"] if path and path.exists() else []
    for job in () if options.table else JOBS:
        if options.only and job.name not in options.only:
            continue
        found = run(job, options.dtype, options.trials or job.trials, options.seed)
        same = (found["name"], found["dtype"])
        others = [each for each in records if (each["name"], each["dtype"]) != same]
        records = [*others, found]
        if options.output:  # after each job: a long benchmark may be stopped
            command = f"python benchmarks/attention_ragged.py --seed {options.seed}"
            data = {"command": command, "jobs": records}
            options.output.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join(table(records)))


if __name__ == "__main__":
    main()
