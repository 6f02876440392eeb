"""Measures evotune's own time per trial: a run on the `recorded` device, store included.

    python benchmarks/overhead.py [--trials 1000] [--repeats 5] [-o FILE]

Every outcome is looked up, so all the time is the framework's: ask, plan, store (one SQLite
commit a trial), tell, progress. It also measures `evotune --help` as a whole process.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from evotune.runs.observer import Progress, SilentObserver
from evotune.runs.starting import RunRequest, start_run
from evotune.search.catalog import STRATEGY_NAMES
from evotune.trial import Trial

RECORDING = Path(__file__).parents[1] / "tests" / "data" / "synthetic_recording.json.gz"


class Clock(SilentObserver):
    """Notes when the search begins and when each trial has been told."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def phase(self, text: str) -> None:
        self.times_s = [time.perf_counter()]

    def told(self, trial: Trial, progress: Progress) -> None:
        self.times_s.append(time.perf_counter())


def per_trial_us(strategy: str, trials: int) -> tuple[float, float]:
    """Mean and 99th percentile of the time between tells, in microseconds."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        request = RunRequest(
            str(RECORDING), runs_dir=Path(folder), options={"trials": trials}, strategy=strategy
        )
        start_run(request, clock)
    steps = [
        1e6 * (after - before)
        for before, after in zip(clock.times_s, clock.times_s[1:], strict=False)
    ]
    return statistics.fmean(steps), sorted(steps)[int(0.99 * len(steps))]


def help_ms() -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "evotune", "--help"]
    subprocess.run(command, check=True, capture_output=True)
    return 1e3 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    strategies = {}
    print(f"{'strategy':12} {'mean µs/trial':>14} {'p99 µs':>9}   ({options.trials} trials)")
    for strategy in STRATEGY_NAMES:
        runs = [per_trial_us(strategy, options.trials) for _ in range(options.repeats)]
        mean_us = statistics.median(mean for mean, _ in runs)
        p99_us = statistics.median(p99 for _, p99 in runs)
        strategies[strategy] = {"mean_us": round(mean_us, 1), "p99_us": round(p99_us, 1)}
        print(f"{strategy:12} {mean_us:14.0f} {p99_us:9.0f}")
    help_times = [help_ms() for _ in range(2 * options.repeats)]
    print(f"evotune --help: median {statistics.median(help_times):.0f} ms")
    if options.output:
        record = {
            "command": ["python", "benchmarks/overhead.py", *sys.argv[1:]],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "trials": options.trials,
            "strategies": strategies,
            "help_ms": round(statistics.median(help_times), 1),
        }
        options.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
