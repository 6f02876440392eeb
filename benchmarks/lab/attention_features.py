"""Times attention with features, tuned for each shape, beside its time without them, on one GPU.

    python benchmarks/lab/attention_features.py [--rung mma|wgmma] [--only NAME ...]
        [--dtype float16|bfloat16] [--trials N] [--seed 0] [--minutes M] [--again]
        [--baseline NAME] -o benchmarks/results/FILE.json
    python benchmarks/lab/attention_features.py --pair [--rung mma|wgmma] [--only NAME ...]
        [--dtype float16|bfloat16] [--minutes M] [--again] -o benchmarks/results/FILE.json
    python benchmarks/lab/attention_features.py --table benchmarks/results/FILE.json

Each job is one `evotune run` whose best configuration was confirmed in a fresh process. FILE is
written after each job, and a job whose record it has is not run again (but with `--again`), so a
campaign can be run in parts: no job begins after `--minutes`. A job that fails is told and left
out. Times are device time by CUDA graph replay with warm caches. `of plain` is the time as a share
of that of the job without features, and `work` the share of the scores that are visible.

With `--pair` nothing is searched: the champions in FILE of a feature and of the job without it are
timed in turn in one process (feature_pairs.py), and the feature's record gets the ratio with its
95% interval and each side's clock. The table shows that ratio. Without it `of plain` comes from two
runs, whose clocks differ, and has no interval.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuning import champion, derive, environment, shape_of, shipped, tune

from evotune.problems import create_problem

if TYPE_CHECKING:
    from feature_pairs import Pair

ROOT = Path(__file__).parents[2]
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
KEPT = {"KEEP_MAXIMUM": True, "HALF_BLOCKS": True, "HIDE_ENDS": True}
SMALL = {"wgmma": {"CONSUMER_WARPGROUPS": 3}}
SMALL_CAPPED = {"wgmma": {**SMALL["wgmma"], "HIDE_ENDS": True}}
SMALL_KEPT = {"wgmma": {**SMALL["wgmma"], **KEPT}}
WINDOW = {"wgmma": {**SMALL_KEPT["wgmma"], "STAGES": 4, "SKIP_MASKED": True}}
BIAS = {"BIAS_IN_PRODUCT": True, **KEPT}
BIASED = {"wgmma": {**SMALL["wgmma"], **BIAS}}
_WIDE = {"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 128, "STAGES": 2}
WIDE = {"wgmma": {**_WIDE, "Q_IN_REGS": True, "SKIP_MASKED": True}}
WIDE_CAPPED = {"wgmma": {**WIDE["wgmma"], "HIDE_ENDS": True}}
WIDE_KEPT = {"wgmma": {**WIDE["wgmma"], **KEPT}}
WIDE_BIASED = {"wgmma": {**WIDE["wgmma"], **BIAS}}
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
    Job("causal", CAUSAL, baseline="sdpa:best", plain="", start=SMALL_KEPT),
    Job("window 1024", {**CAUSAL, "window_left": 1023}, start=WINDOW),
    Job("softcap", {**CAUSAL, "softcap": 30.0}, start=SMALL_CAPPED),
    Job("sinks", {**CAUSAL, "sinks": True}, start=SMALL_KEPT),
    Job("alibi", {**CAUSAL, "alibi": True}, start=BIASED),
    Job("score mod", {**CAUSAL, "score_mod": MOD}, start=BIASED),
    Job("lse", {**CAUSAL, "lse": True}, start=SMALL_KEPT),
    Job("window 128 and sinks", {**CAUSAL, "window_left": 127, "sinks": True}),
    Job("causal 128", CAUSAL, LONG, "sdpa:best", "", start=WIDE_KEPT),
    Job("softcap 128", {**CAUSAL, "softcap": 30.0}, LONG, plain="causal 128", start=WIDE_CAPPED),
    Job(
        "window 1024 128",
        {**CAUSAL, "window_left": 1023},
        LONG,
        "flex",
        "causal 128",
        start=WIDE_KEPT,
    ),
    Job("sinks 128", {**CAUSAL, "sinks": True}, LONG, plain="causal 128", start=WIDE_KEPT),
    Job("score mod 128", {**CAUSAL, "score_mod": MOD}, LONG, plain="causal 128", start=WIDE_BIASED),
    Job("256", CAUSAL, shape_of(16, 16, 2048, 256), "sdpa:best", "", start=WIDEST),
    Job("192 with values of 128", CAUSAL, MLA, "sdpa:best", "", start=MLA_START),
)


def space_of(rung: str) -> str:
    return f"attention_{rung}_features"


def problem_of(job: Job, dtype: str) -> dict[str, Any]:
    shapes = {"shapes": [job.shape], "held_out": []}
    return {"dtype": dtype, **shapes, "variants": [job.variant]}


def run(job: Job, rung: str, dtype: str, trials: int, seed: int) -> Record:
    space = space_of(rung)
    with tempfile.TemporaryDirectory() as folder:
        changes: dict[str, Any] = {"problem": problem_of(job, dtype), "baseline": job.baseline}
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


JOBS_BY_NAME = {job.name: job for job in JOBS}


def plain_of(record: Record, records: Sequence[Record]) -> Record | None:
    """The record of the job without the feature."""
    wanted = (record["rung"], JOBS_BY_NAME[record["name"]].plain, record["dtype"])
    return next((each for each in records if key(each) == wanted), None)


def is_paired(record: Record, plain: Record) -> bool:
    """Whether the two were timed in turn. A later search may have found another champion."""
    timed = record.get("of_plain", {}).get("plain_configuration", {})
    return bool(plain["configuration"].items() <= timed.items())  # more: newer parameters


def left_to_pair(
    records: Sequence[Record], wanted: Sequence[tuple[str, str, str]], *, again: bool
) -> Iterator[tuple[Record, Pair]]:
    """The records of these keys that are not paired, and what is to be timed. Tells which ones lack
    a record."""
    from feature_pairs import Pair

    for rung, name, dtype in wanted:
        job = JOBS_BY_NAME[name]
        record = next((each for each in records if key(each) == (rung, name, dtype)), None)
        plain = plain_of(record, records) if record and job.plain else None
        if not job.plain or (record and plain and not again and is_paired(record, plain)):
            continue
        if record is None or plain is None:
            lacking = name if record is None else job.plain
            print(f"{rung}, {name}, {dtype}: no record of {lacking}", file=sys.stderr)
            continue
        yield (
            record,
            Pair(
                name=f"{rung}, {name}, {dtype}",
                space=space_of(rung),
                feature=record["configuration"],
                feature_problem=problem_of(job, dtype),
                plain=plain["configuration"],
                plain_problem=problem_of(JOBS_BY_NAME[job.plain], dtype),
            ),
        )


def of_plain(record: Record, plain: Record | None) -> str:
    if plain is None:
        return ""
    if not is_paired(record, plain):
        return f"{warm(record)['time_us'] / warm(plain)['time_us']:.2f}"
    found = record["of_plain"]
    return f"{found['ratio']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def table(records: list[Record]) -> list[str]:
    lines = [
        "| rung, job, type | baseline µs | evotune µs | speedup [95%] | of plain | work | TFLOP/s |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for record in records:
        job, dtype, found = JOBS_BY_NAME[record["name"]], record["dtype"], warm(record)
        problem = create_problem("attention", dtype)
        flops = problem.flops(problem.case(job.shape, job.variant))
        share = of_plain(record, plain_of(record, records))
        work = flops / problem.flops(problem.case(job.shape, CAUSAL))
        measured = f"{found['baseline']} {found['baseline_us']:.1f} | {found['time_us']:.1f}"
        interval = f"[{found['speedup_low']:.2f}, {found['speedup_high']:.2f}]"
        lines.append(
            f"| {record['rung']}, {job.name}, {dtype} | {measured} "
            f"| {found['speedup']:.2f}× {interval} | {share} | {work:.2f} "
            f"| {flops / found['time_us'] / 1e6:.0f} |"
        )
    return lines


class RecordFile:
    """The records of FILE, by rung, name and type. The command and the note that FILE has are
    kept."""

    def __init__(self, path: Path | None, seed: int) -> None:
        there = path is not None and path.exists()
        self._path = path
        self._data: dict[str, Any] = json.loads(path.read_text()) if path and there else {}
        self._command = f"python benchmarks/lab/attention_features.py --seed {seed}"
        self.records: list[Record] = self._data.get("jobs", [])

    def keep(self, record: Record) -> None:
        """Puts the record in the place of the one of the same key, and writes the file: a long
        benchmark may be stopped."""
        known = [key(each) for each in self.records]
        place = known.index(key(record)) if key(record) in known else len(known)
        self.records[place : place + 1] = [record]
        if self._path is not None:
            self._data = {"command": self._command, **self._data, "jobs": self.records}
            self._path.write_text(json.dumps(self._data, indent=1) + "\n")


def pair(file: RecordFile, options: argparse.Namespace, wanted: Sequence[Job]) -> None:
    from feature_pairs import measured_in_turn

    keys = [(options.rung, job.name, options.dtype) for job in wanted]
    left = list(left_to_pair(file.records, keys, again=options.again))
    records = {asked.name: record for record, asked in left}
    ends_s = time.monotonic() + 60 * options.minutes
    for asked, found in measured_in_turn([asked for _, asked in left], options.device):
        if isinstance(found, Exception):
            print(f"{asked.name}: {type(found).__name__}: {found}", file=sys.stderr)
        else:
            share = f"{found['ratio']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
            print(f"{asked.name}: {share} of plain", file=sys.stderr, flush=True)
            file.keep({**records[asked.name], "of_plain": found})
        if time.monotonic() > ends_s:
            break


def search(file: RecordFile, options: argparse.Namespace, wanted: Sequence[Job]) -> None:
    ends_s = time.monotonic() + 60 * options.minutes
    done = () if options.again else [key(each) for each in file.records]
    for job in wanted:
        if (options.rung, job.name, options.dtype) in done or time.monotonic() > ends_s:
            continue
        asked = replace(job, baseline=options.baseline or job.baseline)
        try:
            found = run(asked, options.rung, options.dtype, options.trials, options.seed)
        except (subprocess.CalledProcessError, ValueError) as error:
            print(f"{options.rung}, {job.name}: {error}", file=sys.stderr)
            continue
        file.keep(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", action="store_true")
    parser.add_argument("--rung", choices=RUNGS, default="mma")
    parser.add_argument("--only", nargs="*", choices=[job.name for job in JOBS])
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--baseline", help="in place of each job's own")
    parser.add_argument("--device", default="cuda:0", help="of --pair")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.pair and not (options.output and options.output.exists()):
        parser.error("--pair: -o FILE has the champions")
    file = RecordFile(options.table or options.output, options.seed)
    wanted = [
        job
        for job in JOBS
        if options.rung in job.rungs and (not options.only or job.name in options.only)
    ]
    if not options.table:
        (pair if options.pair else search)(file, options, wanted)
    print("\n".join(table(file.records)))


if __name__ == "__main__":
    main()
