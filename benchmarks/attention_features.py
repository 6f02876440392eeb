"""Times attention with features, tuned for each shape, beside its time without them, on one GPU.

    python benchmarks/attention_features.py [--rung mma|wgmma] [--only NAME ...]
        [--dtype float16|bfloat16] [--trials N] [--seed 0] [--minutes M] [--again]
        [--baseline NAME] -o benchmarks/results/FILE.json
    python benchmarks/attention_features.py --table benchmarks/results/FILE.json

Each job is one `evotune run` whose best configuration was confirmed in a fresh process. FILE is
written after each job, and a job whose record it has is not run again (but with `--again`), so a
campaign can be run in parts: no job begins after `--minutes`. A job that fails is told and left
out. Times are device time by CUDA graph replay with warm caches. `of plain` is the time as a share
of that of the job without features, and `work` the share of the scores that are visible.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tuning import champion, derive, environment, shape_of, shipped, tune

from evotune.problems import create_problem

ROOT = Path(__file__).parents[1]
RUNGS = ("mma", "wgmma")
Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """`plain` is the name of the job without the feature, "" where there is none; `start` is what
    differs from the default configuration of a rung's space."""

    name: str
    variant: dict[str, Any]
    shape: dict[str, Any] = field(default_factory=lambda: shape_of(1, 16, 8192, 64))
    baseline: str = "flex"
    plain: str = "causal"
    rungs: tuple[str, ...] = RUNGS
    start: dict[str, dict[str, Any]] = field(default_factory=dict)


CAUSAL = {"causal": True}
MOD = "score - 0.01 * (row - column) if head % 2 == 0 else score"
LONG = shape_of(1, 16, 8192, 128)
SMALL = {"wgmma": {"CONSUMER_WARPGROUPS": 3}}
WINDOW = {"wgmma": {"CONSUMER_WARPGROUPS": 3, "SKIP_MASKED": True, "HALF_BLOCKS": True}}
BIASED = {"wgmma": {"CONSUMER_WARPGROUPS": 3, "BIAS_IN_PRODUCT": True}}
WIDE = {"wgmma": {"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 128, "STAGES": 2}}
# A window's half blocks make ptxas serialize the products at head size 128.
WIDE_WINDOW = {"wgmma": {**WIDE["wgmma"], "SKIP_MASKED": True}}
WIDE_BIASED = {"wgmma": {**WIDE["wgmma"], "BIAS_IN_PRODUCT": True}}
WIDEST = {
    "mma": {"Q_IN_REGS": False},
    "wgmma": {
        "CONSUMER_WARPGROUPS": 2,
        "BLOCK_N": 80,
        "STAGES": 2,
        "QUERY_STAGES": 1,
        "PRODUCER_REGISTERS": 56,
        "SKIP_MASKED": True,
        "HEAD_SECTION": 1,
    },
}
MLA = {**shape_of(4, 16, 2048, 192), "value_dim": 128}
MLA_START = {"wgmma": {"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 128, "STAGES": 2, "QUERY_STAGES": 1}}
JOBS = (
    Job("causal", CAUSAL, baseline="sdpa:best", plain="", start=SMALL),
    Job("window 1024", {**CAUSAL, "window_left": 1023}, start=WINDOW),
    Job("softcap", {**CAUSAL, "softcap": 30.0}, start=SMALL),
    Job("sinks", {**CAUSAL, "sinks": True}, start=SMALL),
    Job("alibi", {**CAUSAL, "alibi": True}, start=BIASED),
    Job("score mod", {**CAUSAL, "score_mod": MOD}, start=BIASED),
    Job("lse", {**CAUSAL, "lse": True}, start=SMALL),
    Job("window 128 and sinks", {**CAUSAL, "window_left": 127, "sinks": True}),
    Job("causal 128", CAUSAL, LONG, "sdpa:best", "", start=WIDE),
    Job("softcap 128", {**CAUSAL, "softcap": 30.0}, LONG, plain="causal 128", start=WIDE),
    Job(
        "window 1024 128",
        {**CAUSAL, "window_left": 1023},
        LONG,
        "flex",
        "causal 128",
        start=WIDE_WINDOW,
    ),
    Job("sinks 128", {**CAUSAL, "sinks": True}, LONG, plain="causal 128", start=WIDE),
    Job("score mod 128", {**CAUSAL, "score_mod": MOD}, LONG, plain="causal 128", start=WIDE_BIASED),
    Job("256", CAUSAL, shape_of(16, 16, 2048, 256), "sdpa:best", "", start=WIDEST),
    Job("192 with values of 128", CAUSAL, MLA, "sdpa:best", "", start=MLA_START),
)


def run(job: Job, rung: str, dtype: str, trials: int, seed: int) -> Record:
    space = f"attention_{rung}_features"
    with tempfile.TemporaryDirectory() as folder:
        problem = {"dtype": dtype, "shapes": [job.shape], "held_out": []}
        problem["variants"] = [job.variant]
        changes: dict[str, Any] = {"problem": problem, "baseline": job.baseline}
        changes["default"] = {**shipped(space)["default"], **job.start.get(rung, {})}
        path = derive(space, changes, Path(folder) / "space.yaml")
        options = ["--trials", str(trials), "--seed", str(seed), "--device", "cuda:0"]
        options += ["--champions", "1"]
        report = tune(path, Path(folder), *options)
    best = champion(report)
    return {
        "rung": rung,
        "name": job.name,
        "dtype": dtype,
        "seed": seed,
        "trials": len(report["trials"]),
        "ok_trials": sum(trial["outcome"] == "ok" for trial in report["trials"]),
        "configuration": best["configuration"],
        "resources": best["resources"],
        "measurements": best["measurements"],
        "baselines": report["baseline"],
        "environment": environment(report),
    }


def key(record: Record) -> tuple[str, str, str]:
    return record["rung"], record["name"], record["dtype"]


def warm(record: Record) -> Record:
    found: Record = next(each for each in record["measurements"] if each["cache"] == "warm")
    return found


def table(records: list[Record]) -> list[str]:
    lines = [
        "| rung, job, type | baseline µs | evotune µs | speedup [95%] | of plain | work | TFLOP/s |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    jobs = {job.name: job for job in JOBS}
    times = {key(each): warm(each)["time_us"] for each in records}
    for record in records:
        job, dtype, found = jobs[record["name"]], record["dtype"], warm(record)
        problem = create_problem("attention", dtype)
        flops = problem.flops(problem.case(job.shape, job.variant))
        plain = times.get((record["rung"], job.plain, dtype))
        of_plain = f"{found['time_us'] / plain:.2f}" if plain else ""
        work = flops / problem.flops(problem.case(job.shape, CAUSAL))
        measured = f"{found['baseline']} {found['baseline_us']:.1f} | {found['time_us']:.1f}"
        interval = f"[{found['speedup_low']:.2f}, {found['speedup_high']:.2f}]"
        lines.append(
            f"| {record['rung']}, {job.name}, {dtype} | {measured} "
            f"| {found['speedup']:.2f}× {interval} | {of_plain} | {work:.2f} "
            f"| {flops / found['time_us'] / 1e6:.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rung", choices=RUNGS, default="mma")
    parser.add_argument("--only", nargs="*", choices=[job.name for job in JOBS])
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--baseline", help="in place of each job's own")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    path = options.table or options.output
    records: list[Record] = json.loads(path.read_text())["jobs"] if path and path.exists() else []
    ends_s = time.monotonic() + 60 * options.minutes
    done = () if options.again else [key(each) for each in records]
    for job in () if options.table else JOBS:
        if options.rung not in job.rungs or (options.only and job.name not in options.only):
            continue
        if (options.rung, job.name, options.dtype) in done or time.monotonic() > ends_s:
            continue
        asked = replace(job, baseline=options.baseline or job.baseline)
        try:
            found = run(asked, options.rung, options.dtype, options.trials, options.seed)
        except (subprocess.CalledProcessError, ValueError) as error:
            print(f"{options.rung}, {job.name}: {error}", file=sys.stderr)
            continue
        records = [*(each for each in records if key(each) != key(found)), found]
        if options.output:  # after each job: a long benchmark may be stopped
            command = f"python benchmarks/attention_features.py --seed {options.seed}"
            data = {"command": command, "jobs": records}
            options.output.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join(table(records)))


if __name__ == "__main__":
    main()
