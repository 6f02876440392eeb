"""Measures how many workers one coordinator can feed: `recorded` device, virtual workers.

    python benchmarks/coordinator.py [--workers 1 10 100 1000] [--trial-s 0.126] [-o FILE]

The search loop, the strategy and the store are the real ones. The workers are virtual: a trial
takes one of them `--trial-s` on average. The coordinator can feed its workers as long as its CPU
time per trial is less than trial time / workers; the table shows how many workers that allows. The
lookahead is twice the number of workers.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from evotune.backends.base.recorded import RecordedSpace
from evotune.run_options import RunOptions
from evotune.runs.kernel_run import InlineExecutor
from evotune.runs.observer import SilentObserver
from evotune.runs.search_loop import SearchLoop
from evotune.search.catalog import create_strategy
from evotune.space.search_space import ExplicitSpace, OrderedParameter
from evotune.store import RunStore
from evotune.trial import Configuration
from evotune.workers.executor import Proposal

STRATEGIES = {"random": 1000, "local": 1000, "evolution": 100}
"""Each strategy, and the most workers that it is tried with. With more workers than that, a trial
costs `evolution` a tenth of a second."""
_SIZE = 12  # 12^4 configurations


def recording() -> RecordedSpace:
    """A smooth landscape with noise, in the form of a recorded space."""
    rng = random.Random(0)
    names = "ABCD"
    parameters = [OrderedParameter(name, list(range(_SIZE))) for name in names]
    times_ms = {}
    for number in range(_SIZE ** len(names)):
        values = [number // _SIZE**place % _SIZE for place in range(len(names))]
        configuration = Configuration(dict(zip(names, values, strict=True)))
        far = sum((value - 7) ** 2 for value in values)
        times_ms[configuration] = (1 + far / 50) * rng.lognormvariate(0.0, 0.05)
    space = ExplicitSpace(tuple(parameters), times_ms)
    return RecordedSpace("smooth", "none", space, times_ms, {})


def measure(
    recorded: RecordedSpace, strategy: str, workers: int, trials: int, trial_s: float
) -> dict[str, float]:
    rng = random.Random(0)
    executor = InlineExecutor(
        recorded.outcome,
        devices=workers,
        duration_s=lambda proposal: trial_s * rng.lognormvariate(-0.125, 0.5),
    )
    lookahead = 2 * workers
    options = RunOptions(lookahead=lookahead, trials=trials)
    with (
        tempfile.TemporaryDirectory() as folder,
        RunStore.create(Path(folder) / "store.sqlite") as store,
    ):
        loop = SearchLoop(
            store,
            create_strategy(strategy, recorded.space, options),
            executor,
            Proposal,
            options=options,
            searched_s=0.0,
            stop=lambda: False,
            observer=SilentObserver(),
        )
        started_s = time.process_time()
        loop.run()
        cpu_s = time.process_time() - started_s
    return {
        "trials": trials,
        "cpu_ms_per_trial": round(1e3 * cpu_s / trials, 3),
        "trials_per_cpu_second": round(trials / cpu_s, 1),
        "workers_fed": round(trial_s * trials / cpu_s, 1),
        "virtual_s": round(executor.now_s, 1),
        "workers_busy_share": round(trials * trial_s / workers / executor.now_s, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--trial-s", type=float, default=0.126)
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    recorded = recording()
    found: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{'strategy':10} {'workers':>8} {'CPU ms/trial':>13} {'trials/s':>9} {'can feed':>9}")
    for strategy in options.strategies:
        found[strategy] = {}
        for workers in options.workers:
            if workers > STRATEGIES[strategy]:
                continue
            trials = max(1000, 5 * workers)
            row = measure(recorded, strategy, workers, trials, options.trial_s)
            found[strategy][str(workers)] = row
            print(
                f"{strategy:10} {workers:8} {row['cpu_ms_per_trial']:13.2f} "
                f"{row['trials_per_cpu_second']:9.0f} {row['workers_fed']:9.0f}",
                flush=True,
            )
    if options.output:
        record = {
            "command": ["python", "benchmarks/coordinator.py", *sys.argv[1:]],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "trial_s": options.trial_s,
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "by_strategy_and_workers": found,
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
