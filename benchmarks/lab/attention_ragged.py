"""Compares the kernels for paged and packed sequences, tuned for each shape, with SDPA and, where
they are installed, with FlashInfer and FlashAttention on one GPU.

    python benchmarks/lab/attention_ragged.py [--only NAME ...] [--dtype float16|bfloat16]
        [--trials N] [--seed 0] [--minutes M] [--job-minutes 3] [--against LIBRARY ...]
        [--again] [--list] -o benchmarks/results/FILE.json
    python benchmarks/lab/attention_ragged.py --table benchmarks/results/FILE.json

Each job is one `evotune run` against SDPA whose best configuration was confirmed in a fresh
process; then one run of that configuration alone against each library, so that each ratio is of one
process. FILE is written after each run, and jobs whose records it has are not run again (but for
libraries that a record lacks), so a campaign can be run in parts: no run begins after `--minutes`,
and a search ends after `--job-minutes`. `--again` runs all jobs anew. `--list` names the jobs that
are left; it needs no GPU. Times are device time by CUDA graph replay, warm unless it says cold.
SDPA's keys are gathered, or its batch is padded, before its time begins. The jobs with `wgmma` in
their names need a Hopper GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuning import champion, derive, environment, tune

from evotune.problems import create_problem
from evotune.problems.libraries import LIBRARIES, version

ROOT = Path(__file__).parents[2]
Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    name: str
    space: str
    shape: dict[str, Any]
    causal: bool
    trials: int = 100
    start: dict[str, Any] = field(default_factory=dict)
    """Changes of the space's default that the search begins with."""

    @property
    def problem(self) -> str:
        return self.space.removesuffix("_wgmma")


def paged(
    sequences: int, longest: int, page_size: int, *, queries: int = 1, lengths: str = "even"
) -> Any:
    """32 heads over 8 kv heads of 128. By zipf the n-th longest has 1/n of the longest; geometric
    lengths go down to 1/128 of it."""
    shape = {"sequences": sequences, "queries": queries, "heads": 32, "kv_heads": 8}
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


def even_packed(head_dim: int) -> Any:
    """8 sequences of 4,096 rows."""
    sizes = {"sequences": 8, "tokens_q": 32768, "tokens_k": 32768, "lengths": "even"}
    return {**packed(head_dim), **sizes}


# Head sizes of up to 64 leave room for three warpgroups.
SMALL = {"CONSUMER_WARPGROUPS": 3, "BLOCK_N": 128, "STAGES": 3, "PRODUCER_REGISTERS": 32}
SMALL |= {"Q_IN_REGS": False, "HEAD_SECTION": 16}
PAGED, VARLEN, VARLEN_WGMMA = "attention_paged", "attention_varlen", "attention_varlen_wgmma"
JOBS = (
    Job("decode 8x4096 pages 16", PAGED, paged(8, 4096, 16), True),
    Job("decode 8x4096 pages 64", PAGED, paged(8, 4096, 64), True),
    Job("decode 1x8192 pages 16", PAGED, paged(1, 8192, 16), True),
    Job("decode 16 uneven pages 16", PAGED, paged(16, 16384, 16, lengths="zipf"), True),
    Job("decode 16 geometric pages 16", PAGED, paged(16, 16384, 16, lengths="geometric"), True),
    Job("four queries 4x8192 pages 16", PAGED, paged(4, 8192, 16, queries=4), True),
    Job("decode 8x4096 pages 1", PAGED, paged(8, 4096, 1), True, 60),
    Job("decode 8x4096 pages 256", PAGED, paged(8, 4096, 256), True, 60),
    Job("packed 64", VARLEN, packed(64), True),
    Job("packed 128", VARLEN, packed(128), True),
    Job("packed 64 wgmma", VARLEN_WGMMA, packed(64), True, start=SMALL),
    Job("packed 128 wgmma", VARLEN_WGMMA, packed(128), True),
    Job("packed 128 full wgmma", VARLEN_WGMMA, packed(128), False),
    Job("packed 8x4096 128 wgmma", VARLEN_WGMMA, even_packed(128), True),
    Job("packed 8x4096 128 full wgmma", VARLEN_WGMMA, even_packed(128), False),
)


@dataclass(frozen=True)
class Campaign:
    """Settings of all jobs. A search ends after `job_minutes`; its confirmations follow."""

    dtype: str
    seed: int
    trials: int | None
    job_minutes: float
    against: Sequence[str]

    def search(self, job: Job) -> Record:
        """The best configuration of a search against SDPA, and its figures."""
        words = ["--trials", str(self.trials or job.trials), "--seed", str(self.seed)]
        changes = {"try_first": [job.start]} if job.start else {}
        report = self._run(job, changes, *words, "--minutes", str(self.job_minutes))
        best = champion(report)
        return {
            "name": job.name,
            "dtype": self.dtype,
            "seed": self.seed,
            "trials": len(report["trials"]),
            "ok_trials": sum(trial["outcome"] == "ok" for trial in report["trials"]),
            "trial": best["number"],
            "configuration": best["configuration"],
            "resources": best["resources"],
            "measurements": best["measurements"],
            "baselines": report["baseline"],
            "libraries": {},
            "environment": environment(report),
        }

    def compare(self, job: Job, configuration: Record, library: str) -> Record:
        """The configuration's figures against a library, or why there are none."""
        changes = {"default": configuration, "baseline": library}
        try:
            report = self._run(job, changes, "--trials", "1", "--champions", "1")
        except subprocess.CalledProcessError as error:
            return {"version": version(library), "reason": f"exit code {error.returncode}"}
        return {"version": version(library), "measurements": champion(report)["measurements"]}

    def _run(self, job: Job, changes: Record, *options: str) -> Record:
        with tempfile.TemporaryDirectory() as folder:
            problem = {"dtype": self.dtype, "shapes": [job.shape], "held_out": []}
            problem["variants"] = [{"causal": job.causal}]
            path = derive(job.space, {"problem": problem, **changes}, Path(folder) / "space.yaml")
            return tune(path, Path(folder), *options, "--device", "cuda:0")


class Records:
    """The records of FILE, by name and type. The command and the note that FILE has are kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        there = path is not None and path.exists()
        self._data: Record = json.loads(path.read_text()) if path and there else {}
        self.all: list[Record] = self._data.get("jobs", [])

    def of(self, name: str, dtype: str) -> Record | None:
        found = [each for each in self.all if (each["name"], each["dtype"]) == (name, dtype)]
        return found[0] if found else None

    def keep(self, record: Record) -> None:
        """Replaces the record of the same name and type, and writes the file."""
        same = self.of(record["name"], record["dtype"])
        self.all = [each for each in self.all if each is not same] + [record]
        if self._path is not None:
            command = f"python benchmarks/lab/attention_ragged.py --seed {record['seed']}"
            self._data = {"command": command, **self._data, "jobs": self.all}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(self._data, indent=1) + "\n")


def left(job: Job, campaign: Campaign, records: Records) -> list[str]:
    """The runs that a job still needs: "search", and the libraries that its record lacks."""
    record = records.of(job.name, campaign.dtype)
    known = record.get("libraries", {}) if record is not None else {}
    searched = [] if record is not None else ["search"]
    return [*searched, *(name for name in campaign.against if name not in known)]


def run_jobs(
    jobs: Sequence[Job], campaign: Campaign, records: Records, deadline: float, *, again: bool
) -> None:
    """A job that ends in an error is told, and the others go on."""
    for job in jobs:
        wanted = ["search", *campaign.against] if again else left(job, campaign, records)
        for name in wanted:
            if time.monotonic() > deadline:
                return
            record = records.of(job.name, campaign.dtype)
            if name == "search":
                try:
                    records.keep(campaign.search(job))
                except (subprocess.CalledProcessError, ValueError) as error:
                    print(f"{job.name}: no champion: {error}", flush=True)
                    break
            else:
                assert record is not None
                found = campaign.compare(job, record["configuration"], name)
                libraries = {**record.get("libraries", {}), name: found}
                records.keep({**record, "libraries": libraries})


def table(records: list[Record]) -> list[str]:
    lines = [
        "| shape, type | baseline µs | evotune µs | speedup [95%] | of copy bandwidth | TFLOP/s |",
        "|---|---|---|---|---|---|",
    ]
    jobs = {job.name: job for job in JOBS}
    for record in records:
        job = jobs[record["name"]]
        problem = create_problem(job.problem, record["dtype"], ROOT)
        case = problem.case(job.shape, {"causal": job.causal})
        copied = record["baselines"]["copy_gbps"]
        libraries = record.get("libraries", {})
        compared = [each for found in libraries.values() for each in found.get("measurements", ())]
        for found in (*record["measurements"], *compared):
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
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no run begins later")
    parser.add_argument("--job-minutes", type=float, default=3.0, help="then a search ends")
    parser.add_argument(
        "--against", nargs="*", choices=LIBRARIES, help="the libraries; those installed, but flex"
    )
    parser.add_argument("--again", action="store_true", help="run what FILE has once more")
    parser.add_argument("--list", action="store_true", help="name the jobs that are left, and end")
    options = parser.parse_args()
    installed = [name for name in LIBRARIES if name != "flex" and version(name)]
    against = installed if options.against is None else options.against
    campaign = Campaign(
        options.dtype, options.seed, options.trials, options.job_minutes, tuple(against)
    )
    records = Records(options.table or options.output)
    jobs = [job for job in JOBS if not options.only or job.name in options.only]
    if options.list:
        for job in jobs:
            print(f"{job.name}, {options.dtype}: {', '.join(left(job, campaign, records)) or '-'}")
        return
    if not options.table:
        deadline = time.monotonic() + 60 * options.minutes
        run_jobs(jobs, campaign, records, deadline, again=options.again)
    print("\n".join(table(records.all)))


if __name__ == "__main__":
    main()
