"""Measures the cost of commands on large runs: `top`, `status`, `resume` and reports.

    python benchmarks/large_runs.py [--trials 100000 1000000] [--folder FOLDER] [-o FILE]

The runs are written through the store's own interface: a recording of more configurations than
trials is replayed in random order and told to the search, whose snapshots are kept as the engine
keeps them. Each command is a whole process, interpreter and imports included. Its wall time, CPU
time and peak memory are the least of some repeats, as a busy machine only adds to them. `resume` is
the whole command for one more trial, with its leaderboard and with reading the recording. The time
of reading is also given by itself, since runs of kernels have no recording. With `--folder` the
runs are kept and used again the next time.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from evotune.backends.base.recorded import RecordedSpace
from evotune.runs.folder import RunFolder, list_runs
from evotune.runs.observer import SilentObserver
from evotune.runs.setup import RecordedSetup, load_run_setup
from evotune.runs.starting import RunRequest, start_run, stored_options
from evotune.search.catalog import create_strategy
from evotune.store import RunStore
from evotune.trial import Configuration, Trial

SNAPSHOT_EVERY = 1000
PARAMETERS = {
    "block_x": [16, 32, 64, 128, 256],
    "block_y": [1, 2, 4, 8, 16],
    "tile_x": list(range(1, 11)),
    "tile_y": list(range(1, 11)),
    "vector": [1, 2, 4],
    "staging": [0, 1],
    "unroll": [2**n for n in range(8)],
    "order": list(range(1, 11)),
}
"""1,200,000 configurations. A recording for fewer trials leaves out values of `order`."""

COMMANDS = {
    "top": ("top",),
    "status": ("status",),
    **{
        f"report {style}": ("report", "--format", style)
        for style in ("md", "html", "jsonl", "json", "t4", "csv", "parquet")
    },
    "resume": ("resume",),
}
_READ = """import sys
from pathlib import Path
from evotune.backends.base.recorded import read_recorded_space
read_recorded_space(Path(sys.argv[1]))
"""


def write_recording(path: Path, trials: int) -> None:
    """Writes a recording with enough configurations for the trials. A tenth of them failed."""
    rng = random.Random(0)
    whole = math.prod(map(len, PARAMETERS.values())) // len(PARAMETERS["order"])
    orders = max(1, math.ceil(1.1 * trials / whole))
    domains = {**PARAMETERS, "order": PARAMETERS["order"][:orders]}
    cache = {}
    for values in _product(domains):
        time_ms = 1.0 + sum(abs(math.log2(1 + value) - 2) for value in values.values())
        failed = rng.random() < 0.1
        time = "RuntimeFailedConfig" if failed else round(time_ms + rng.random(), 5)
        cache[",".join(map(str, values.values()))] = {**values, "time": time}
    header = {"device_name": "none", "kernel_name": "large", "tune_params": domains}
    document = {**header, "tune_params_keys": list(domains), "cache": cache}
    path.write_text(json.dumps(document, separators=(",", ":")))


def _product(domains: dict[str, list[int]]) -> Iterator[dict[str, int]]:
    combinations: list[dict[str, int]] = [{}]
    for name, values in domains.items():
        combinations = [{**known, name: value} for known in combinations for value in values]
    yield from combinations


def make_run(folder: Path, trials: int, strategy: str) -> RunFolder:
    """A run of `trials` trials, in the state in which the engine leaves a run with a spent
    budget."""
    runs_dir = folder / f"{strategy}-{trials}"
    known = list_runs(runs_dir)
    if known:
        return known[0]
    # Another process makes it: the peak memory of this process's children would start at its own.
    maker = multiprocessing.get_context("spawn").Process(
        target=_make_run, args=(folder, runs_dir, trials, strategy)
    )
    maker.start()
    maker.join()
    if maker.exitcode:
        raise SystemExit(maker.exitcode)
    return list_runs(runs_dir)[0]


def _make_run(folder: Path, runs_dir: Path, trials: int, strategy: str) -> None:
    recording = folder / f"recording-{trials}.json"
    if not recording.exists():
        write_recording(recording, trials)
    request = RunRequest(
        str(recording), runs_dir=runs_dir, options={"trials": 1}, strategy=strategy
    )
    run = start_run(request, SilentObserver()).run
    with RunStore.open_for_writing(run.store) as store:
        setup = load_run_setup(run, store)
        assert isinstance(setup, RecordedSetup)
        options = stored_options(store).replaced({"trials": trials})
        search = create_strategy(strategy, setup.space, options)
        (first,) = store.trials()
        search.tell(first)
        for trial in _others(setup.recording, first.configuration, trials):
            store.append(trial, trial.number / 100)
            search.tell(trial)
            if search.told % SNAPSHOT_EVERY == 0 and search.told + 2 * SNAPSHOT_EVERY > trials:
                store.save_snapshot(search.told, search.snapshot())
        store.set_meta("settings", options.to_json())


def _others(recording: RecordedSpace, first: Configuration, trials: int) -> Iterator[Trial]:
    configurations = [c for c in recording.space.enumerate() if c != first]
    random.Random(1).shuffle(configurations)
    for number, configuration in enumerate(configurations[: trials - 1], start=1):
        yield Trial(number, configuration, recording.outcome(configuration))


def _cost_once(command: list[str]) -> dict[str, float]:
    clock = os.times()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {said.decode()}")
    return {
        "wall_s": round(os.times().elapsed - clock.elapsed, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mib": round(usage.ru_maxrss / 1024),
    }


def measure(run: RunFolder, commands: list[str], repeats: int) -> dict[str, dict[str, float]]:
    """The cost of each command. Each `resume` does one trial more."""
    costs: dict[str, dict[str, float]] = {}
    for _ in range(repeats):
        for name in commands:
            _keep_least(costs, name, _cost_once(_command(run, name)))
        if "resume" in commands:
            (recording,) = run.sources.iterdir()
            reading = _cost_once([sys.executable, "-c", _READ, str(recording)])
            _keep_least(costs, "reading the recording", reading)
    return costs


def _command(run: RunFolder, name: str) -> list[str]:
    verb, *options = COMMANDS[name]
    if verb == "report":
        options += ["-o", os.devnull]
    if verb == "resume":
        with RunStore.open_for_reading(run.store) as store:
            options += ["--trials", str(store.count() + 1)]
    return [sys.executable, "-m", "evotune", verb, str(run.path), *options]


def _keep_least(costs: dict[str, dict[str, float]], name: str, found: dict[str, float]) -> None:
    known = costs.setdefault(name, found)
    costs[name] = {figure: min(value, known[figure]) for figure, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--strategies", nargs="+", default=["evolution", "random"])
    parser.add_argument("--folder", type=Path, help="where the runs are kept; else they are not")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for trials in options.trials:
            for strategy in options.strategies:
                run = make_run(folder, trials, strategy)
                costs = measure(run, options.commands, options.repeats)
                size_mib = round(run.store.stat().st_size / 2**20)
                results.append(
                    {"trials": trials, "strategy": strategy, "store_mib": size_mib, **costs}
                )
                print(f"{trials} trials, {strategy}, {size_mib} MiB")
                for name, cost in costs.items():
                    print(f"  {name:12} {cost}")
    if options.output:
        record = {
            "command": ["python", "benchmarks/large_runs.py", *sys.argv[1:]],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "cores": os.cpu_count(),
            "load_at_the_end": round(os.getloadavg()[0], 1),
            "runs": results,
        }
        options.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
