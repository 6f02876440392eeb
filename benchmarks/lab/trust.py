"""Checks that evotune's figures hold: the same measurement in fresh processes, winners before and
after they are confirmed, and the time that racing saves.

    python benchmarks/lab/trust.py [--device cuda:0] [--processes 20] [--runs 8] [--part NAME ...]
        -o benchmarks/results/trust_DEVICE.json
    python benchmarks/lab/trust.py --table benchmarks/results/trust_DEVICE.json

On a GPU it uses attention-mma at the mission shape, on the CPU attention-cpu as it ships. Parts:

- repeat: times one configuration as a champion, each time in a fresh process.
- winners: searches with different seeds, and compares each champion's speedup in the search with
  its confirmed one.
- racing: times the same random candidates with and without racing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attention_cuda import JOBS
from tuning import derive, environment, shipped, tune

from evotune.backends.cpu.cpu_session import CpuSession
from evotune.backends.cuda.cuda_session import CudaSession
from evotune.runs.folder import list_runs
from evotune.runs.kernel_executor import open_kernel_executor
from evotune.runs.setup import load_kernel_setup
from evotune.store import RunStore
from evotune.trial import Configuration, Measurement
from evotune.workers.executor import TIMED

PARTS = ("repeat", "winners", "racing")
SEARCH_TRIALS = {"cuda": 60, "cpu": 40}
RACING_TRIALS = {"cuda": 80, "cpu": 40}


def space(backend: str, folder: Path) -> Path:
    path = folder / "space.yaml"
    if backend == "cuda":
        return derive("attention_mma", {"problem": JOBS[0].problem()}, path)
    return derive("attention_cpu", {}, path)


def repeat(device: str, backend: str, processes: int, folder: Path) -> dict[str, Any]:
    setup = load_kernel_setup(space(backend, folder), device)
    values = shipped("attention_mma" if backend == "cuda" else "attention_cpu")["default"]
    default = setup.planner.bound.default()
    configuration = Configuration({**default, **values})
    proposal = setup.planner.proposal(0, configuration, confirm=True)
    timed = tuple(case for case in proposal.cases if case.role == TIMED)
    executor = open_kernel_executor(setup, folder / "logs")
    speedups: dict[str, list[float]] = {}
    times_us: dict[str, list[list[float]]] = {}
    try:
        report = executor.time_baselines([case.case for case in timed])
        executor.baselines = {
            case.case.label: min(
                (t for t in report.timings if t.case == case.case.label and t.passed),
                key=lambda t: t.time_us,
            ).name
            for case in timed
        }
        for number in range(processes):
            executor.submit(dataclasses.replace(proposal, number=number, cases=timed))
            done: list[Any] = []
            while not done:
                done = executor.poll(0.5)
            for measurement in done[0][1].measurements:
                if measurement.counts:
                    speedups.setdefault(measurement.case, []).append(measurement.speedup)
                    pair = [measurement.time_us, measurement.baseline_us]
                    times_us.setdefault(measurement.case, []).append(pair)
    finally:
        executor.close()
    return {
        "configuration": dict(configuration),
        "baselines": dict(executor.baselines),
        "speedups": speedups,
        "times_us": times_us,
        "device": setup.profile.name,
    }


def winners(device: str, backend: str, runs: int, folder: Path) -> dict[str, Any]:
    found = []
    report: dict[str, Any] = {}
    for seed in range(runs):
        options = ["--trials", str(SEARCH_TRIALS[backend]), "--seed", str(seed), "--device", device]
        report = tune(space(backend, folder), folder / "runs", *options)
        for trial in report["trials"]:
            if trial["confirmed"]:
                leader = trial["rank"] == 1
                entry = {"seed": seed, "trial": trial["number"], "leader": leader}
                speedups = {"searched": trial["search_speedup"], "confirmed": trial["speedup"]}
                found.append({**entry, **speedups})
    return {"champions": found, "environment": environment(report)}


def racing(device: str, backend: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for way in ("--racing", "--no-racing"):
        options = ["--trials", str(RACING_TRIALS[backend]), "--strategy", "random", way]
        options += ["--champions", "1"]
        runs = folder / way.strip("-")
        report = tune(space(backend, folder), runs, *options, "--device", device)
        (run,) = list_runs(runs)
        with RunStore.open_for_reading(run.store) as store:
            outcomes = {trial.number: trial.outcome for trial in store.trials()}
        ok = {number: outcome for number, outcome in outcomes.items() if outcome.ok}
        best = max(ok, key=lambda number: ok[number].fitness or 0.0)
        found[way.strip("-")] = {
            "trials": len(ok),
            "winner": best,
            "winner_speedup": math.exp(ok[best].fitness or 0.0),
            "rounds": sum(m.samples for outcome in ok.values() for m in outcome.measurements),
            "device_s": sum(sampling_s(m, backend) for o in ok.values() for m in o.measurements),
            "median_s": {
                stage: statistics.median(outcome.stage_s.get(stage, 0.0) for outcome in ok.values())
                for stage in ("verify", "measure")
            },
        }
        found["environment"] = environment(report)
    return found


def sampling_s(measurement: Measurement, backend: str) -> float:
    """The device's time in timed samples: a round has two samples of each side."""
    least_us = CpuSession.sample_us if backend == "cpu" else CudaSession.sample_us
    both_us = sum(
        time_us * max(1, math.ceil(least_us / time_us))
        for time_us in (measurement.time_us, measurement.baseline_us)
    )
    return measurement.samples * 2 * both_us / 1e6


def table(data: Mapping[str, Any]) -> list[str]:
    lines = []
    for case, values in data.get("repeat", {}).get("speedups", {}).items():
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        lines.append(
            f"{case}: {len(values)} fresh processes, speedup {middle:.3f}, "
            f"IQR/median {(high - low) / middle:.2%}, from {min(values):.3f} to {max(values):.3f}"
        )
    champions = data.get("winners", {}).get("champions", [])
    for name, chosen in (
        ("champions", champions),
        ("leaders", [found for found in champions if found["leader"]]),
    ):
        if chosen:
            gaps = [abs(found["confirmed"] / found["searched"] - 1) for found in chosen]
            within = sum(gap <= 0.02 for gap in gaps)
            lines.append(
                f"{name}: {within} of {len(gaps)} confirmed within 2% of what the search saw, "
                f"median gap {statistics.median(gaps):.2%}, largest {max(gaps):.2%}"
            )
    if "racing" in data:
        racing, fixed = data["racing"]["racing"], data["racing"]["no-racing"]
        lines.append(
            f"racing: {racing['device_s']:.2f} s of device time for {racing['trials']} candidates, "
            f"{racing['device_s'] / fixed['device_s']:.0%} of the {fixed['device_s']:.2f} s of "
            f"fixed sampling; winner trial {racing['winner']} ({racing['winner_speedup']:.3f}x), "
            f"without racing trial {fixed['winner']} ({fixed['winner_speedup']:.3f}x)"
        )
        if median_s := racing.get("median_s"):
            stages = ", ".join(f"{stage} {1e3 * s:.0f} ms" for stage, s in median_s.items())
            lines.append(f"a candidate, median by stage: {stages}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--part", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.table.read_text()))))
        return
    backend = "cpu" if options.device == "cpu" else "cuda"
    data: dict[str, Any] = {}
    if options.output and options.output.exists():
        data = json.loads(options.output.read_text())
    data["command"] = f"python benchmarks/lab/trust.py --device {options.device}"
    for part in options.part:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if part == "repeat":
                data[part] = repeat(options.device, backend, options.processes, folder)
            elif part == "winners":
                data[part] = winners(options.device, backend, options.runs, folder)
            else:
                data[part] = racing(options.device, backend, folder)
        if options.output:
            options.output.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join(table(data)))


if __name__ == "__main__":
    main()
