"""Measures how the length of a sample changes times and speedups.

    python benchmarks/lab/sample_length.py [--device cuda:0] [--job NAME] [--rounds 64]
        [-o benchmarks/results/sample_length_DEVICE.json]
    python benchmarks/lab/sample_length.py --table benchmarks/results/sample_length_DEVICE.json

It times the job's start configuration against the fastest baseline, on the job's first case. Both
use buffers at one place and unchanged inputs, and are paired as in a search. Where a call is
shorter than a sample, each side has 8 graphs of each length and replays one a round, since a
graph's place in memory makes it slower or faster. The lengths take turns, so that drift affects all
of them alike.

Starting a graph adds the same time to both sides of a round, which pulls the speedup of a short
sample towards 1. The difference to the longest sample is a search's error. On the CPU
(attention-cpu as it ships) a call is longer than most of these lengths, so the differences are
noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attention_cuda import JOBS, JOBS_BY_NAME, Job
from tuning import derive

from evotune.backends.base.launch import CompileFailure
from evotune.backends.base.session import Sampler, Session
from evotune.problems import create_problem
from evotune.runs.setup import load_kernel_setup
from evotune.timing.paired import (
    TimingSettings,
    measure_paired,
    median_interval,
    time_in_turn_us,
    warm_sampler,
)
from evotune.trial import Measurement
from evotune.verify.buffers import BufferSets
from evotune.verify.pool import InputPool
from evotune.workers.compile_worker import compiler_for
from evotune.workers.device_worker import open_session
from evotune.workers.executor import TIMED

SAMPLES_US = (125.0, 250.0, 500.0, 1000.0, 3000.0)
GRAPHS = 8
SEED = 7


def measure(job: Job, device: str, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        space = "attention_cpu" if device == "cpu" else job.space
        changes = {} if device == "cpu" else {"problem": job.problem()}
        if device != "cpu" and job.start:
            changes["default"] = job.start
        setup = load_kernel_setup(derive(space, changes, folder / "space.yaml"), device)
        proposal = setup.planner.proposal(0, setup.space.default())
        timed = next(case for case in proposal.cases if case.role == TIMED)
        binary = folder / "kernel.bin"
        built = compiler_for(timed.compile.language).compile(timed.compile, binary, 120.0)
        assert not isinstance(built, CompileFailure), built
        session = open_session(setup.profile)
        kernel = session.load(binary, timed.plan)
    problem = create_problem(setup.problem_spec.name, setup.problem_spec.dtype)
    pool = InputPool(problem, session.torch_device)
    inputs = dict(pool.get(timed.case, "normal", SEED).inputs)
    buffers = BufferSets(problem.tensors(timed.case), timed.plan, [inputs], session.torch_device)
    launch = session.bind(kernel, timed.plan, buffers.pointers())
    baselines = problem.baselines(timed.case, inputs)
    fastest = _fastest(session, baselines)
    pairs = {}
    for sample_us in SAMPLES_US:
        settings = dataclasses.replace(TimingSettings(), sample_us=sample_us)
        calls = (launch, baselines[fastest])
        pairs[sample_us] = [
            warm_sampler(session, [call], settings, graphs=GRAPHS) for call in calls
        ]
    return {
        "case": timed.case.label,
        "baseline": fastest,
        "configuration": dict(proposal.configuration),
        "rounds": rounds,
        "graphs": GRAPHS,
        "device": setup.profile.name,
        "rows": _rows(pairs, rounds),
    }


def _fastest(session: Session, baselines: Mapping[str, Callable[[], object]]) -> str:
    for call in baselines.values():
        call()
    session.synchronize()
    samplers = {name: session.sampler([call] * 20) for name, call in baselines.items()}
    times_us = time_in_turn_us(samplers)
    return min(times_us, key=times_us.__getitem__)


def _rows(pairs: Mapping[float, Sequence[Sampler]], rounds: int) -> list[dict[str, float]]:
    """A row for each length of a sample. `pairs` holds the candidate's and the baseline's sampler,
    by that length."""
    once = TimingSettings(min_rounds=1, max_rounds=1)
    found: dict[float, list[Measurement]] = {sample_us: [] for sample_us in pairs}
    for _ in range(rounds):
        for sample_us, (candidate, baseline) in pairs.items():
            one = measure_paired(candidate, baseline, case="", baseline_name="", settings=once)
            found[sample_us].append(one)
    rows = []
    for sample_us, measured in found.items():
        interval = median_interval([one.speedup for one in measured])
        rows.append(
            {
                "sample_us": sample_us,
                "time_us": statistics.median(one.time_us for one in measured),
                "baseline_us": statistics.median(one.baseline_us for one in measured),
                "speedup": interval.median,
                "speedup_low": interval.low,
                "speedup_high": interval.high,
            }
        )
    return rows


def table(data: Mapping[str, Any]) -> list[str]:
    longest = data["rows"][-1]
    lines = [f"{data['case']} on {data['device']}, against {data['baseline']}"]
    lines += [
        "| sample µs | µs | baseline µs | speedup [95%] | of the longest's |",
        "|" + "---|" * 5,
    ]
    for row in data["rows"]:
        lines.append(
            f"| {row['sample_us']:.0f} | {row['time_us']:.2f} | {row['baseline_us']:.2f} "
            f"| {row['speedup']:.3f} [{row['speedup_low']:.3f}, {row['speedup_high']:.3f}] "
            f"| {row['speedup'] / longest['speedup']:.2%} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--job", choices=JOBS_BY_NAME, default=JOBS[0].name)
    parser.add_argument("--rounds", type=int, default=8 * GRAPHS)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.table.read_text()))))
        return
    data = {
        "command": ["python", "benchmarks/lab/sample_length.py", *sys.argv[1:]],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **measure(JOBS_BY_NAME[options.job], options.device, options.rounds),
    }
    if options.output:
        options.output.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join(table(data)))


if __name__ == "__main__":
    main()
