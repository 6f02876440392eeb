"""Measures a whole attention space on a GPU, and how soon searches come near its optimum.

    python benchmarks/lab/record_attention.py record [--minutes 20] [--gpus N] [-o RECORDING]
    python benchmarks/lab/record_attention.py curve RECORDING [--repeats 30] [-o FILE]

`record` takes the tensor-core rung at the mission shape with some parameters held (see `_HELD`).
Each configuration is checked and timed against SDPA as in a search; the confirmations of champions
are not used. A configuration's time in the recording is SDPA's median time over its speedup, so
that the figures of several GPUs of one machine can be compared. Those of several machines cannot:
SDPA took 9.1 us on one and 10.0 on another, where the kernels took the same.

`curve` needs no GPU. It replays strategies on the recording and shows after how many evaluations
the median run is within 5% and 1% of the recording's best. The peers need the `bench` extra.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention_cuda import JOBS
from search_peers import PEERS, Times, peer_runs
from tuning import EVOTUNE, ROOT, derive, environment, shipped, tune

from evotune.backends.base.recorded import RecordedSpace, read_recorded_space
from evotune.report.leaderboard import figures
from evotune.run_options import SearchSettings
from evotune.runs.folder import list_runs
from evotune.runs.replay import replay
from evotune.runs.setup import load_setup
from evotune.store import RunStore
from evotune.trial import Outcome

# Parameters that matter least at this shape in earlier runs, or that depend on the keys' length.
_HELD = {
    "KV_ORDER": "forward",
    "RESCALE_LOG2": 0,
    "SKIP_MASKED": "false",
    "TILE_ORDER": "by_row",
    "PERSISTENT": 0,
    "MIN_CTAS": 1,
}
_LEFT_OUT = (
    "BLOCK_N in (32, 64, 96, 128, 256)",
    "STAGES <= 4",
    "SWIZZLE != none",
    "SPLIT_KV <= 2",
    "SPLIT_KV == 1 or MERGE != kernel",
)
_STRATEGIES = ("evolution", "evolution@16", "random", "kt:genetic_algorithm")
_EVALUATIONS = 1000
_NEAR = (0.05, 0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    recorder = actions.add_parser("record")
    recorder.add_argument("--minutes", type=float, default=20.0)
    recorder.add_argument("--device", default="cuda:0")
    recorder.add_argument("--gpus", type=int, help="instead of one device")
    recorder.add_argument(
        "-o", "--output", type=Path, default=ROOT / "benchmarks/results/attention_h200.t4.json.gz"
    )
    curve = actions.add_parser("curve")
    curve.add_argument("recording", type=Path)
    curve.add_argument("--repeats", type=int, default=30)
    curve.add_argument("--strategies", default=",".join(_STRATEGIES))
    curve.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.action == "record":
        devices = ["--device", options.device]
        if options.gpus:
            devices = ["--gpus", str(options.gpus), "--lookahead", str(24 * options.gpus)]
        record(devices, options.minutes, options.output)
        return
    recording = read_recorded_space(options.recording)
    found = curves(recording, options.strategies.split(","), options.repeats)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def record(devices: Sequence[str], minutes: float, output: Path) -> None:
    """Measures the space in random order, so that even a part of it is a fair sample."""
    constraints = [*shipped("attention_mma")["constraints"], *_LEFT_OUT]
    constraints += [f"{name} == {value}" for name, value in _HELD.items()]
    changes: dict[str, Any] = {"problem": JOBS[0].problem(), "constraints": constraints}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        space = derive("attention_mma", changes, folder / "attention_mma_recorded.yaml")
        size = sum(1 for _ in load_setup(space, "h200", compile_only=True).space.enumerate())
        limits = ["--minutes", str(minutes), "--trials", str(size), "--champions", "1"]
        told = tune(space, folder, "--strategy", "random", *devices, *limits)
        words = [*EVOTUNE, "report", "latest", "--format", "t4", "--runs-dir", str(folder)]
        data = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
        (run,) = list_runs(folder)
        with RunStore.open_for_reading(run.store) as store:
            _as_searched(data["results"], [trial.outcome for trial in store.trials()])
    data["environment"] = {"minutes": minutes, "devices": [*devices], **environment(told)}
    _by_speedup(data["results"])
    with gzip.GzipFile(output, "wb", mtime=0) as file:
        file.write((json.dumps(data) + "\n").encode())


def _as_searched(results: Sequence[dict[str, Any]], outcomes: Sequence[Outcome]) -> None:
    """Replaces confirmed speedups by those of the search, so that all are measured alike. A report
    gives a champion the figures of its confirmation."""
    for result, outcome in zip(results, outcomes, strict=True):
        found = figures(outcome)
        for measurement in result["measurements"]:
            if measurement["name"].startswith("speedup"):
                measurement["value"] = getattr(found, measurement["name"])


def _by_speedup(results: Sequence[dict[str, Any]]) -> None:
    """Sets each time to the baseline's median time over the configuration's speedup, as if one
    device had measured all."""
    timed = []
    for result in results:
        named = {measurement["name"]: measurement for measurement in result["measurements"]}
        if "time" in named and "speedup" in named:
            timed.append((named["time"], named["speedup"]["value"]))
    baseline_ms = statistics.median(time["value"] * speedup for time, speedup in timed)
    for time, speedup in timed:
        time["value"] = baseline_ms / speedup


def curves(recording: RecordedSpace, strategies: Sequence[str], repeats: int) -> dict[str, Any]:
    """The evaluations until a run is within each of `_NEAR` of the optimum, by strategy and repeat;
    None where 1000 were not enough."""
    optimum = min(recording.times_ms.values())
    evaluations = min(_EVALUATIONS, len(recording.space))
    found: dict[str, Any] = {}
    for strategy in strategies:
        runs = list(_runs(strategy, recording, evaluations, repeats))
        found[strategy] = {
            f"{near:.0%}": [_evaluations_to(times, optimum * (1 + near)) for times in runs]
            for near in _NEAR
        }
    return {
        "command": "python benchmarks/lab/record_attention.py curve",
        "configurations": len(recording.space),
        "valid": len(recording.times_ms),
        "optimum_us": optimum * 1000,
        "evaluations_to": found,
    }


def _runs(
    name: str, recording: RecordedSpace, evaluations: int, repeats: int
) -> Sequence[Times] | Any:
    if name in PEERS:
        return peer_runs(name, recording, evaluations, range(repeats))
    strategy, _, lookahead = name.partition("@")
    return [
        [
            evaluation.time_ms
            for evaluation in replay(
                recording,
                strategy,
                SearchSettings(seed=seed, lookahead=int(lookahead or 0)),
                evaluations,
                seed,
            )
        ]
        for seed in range(repeats)
    ]


def _evaluations_to(times: Times, limit_ms: float) -> int | None:
    for number, time_ms in enumerate(times, 1):
        if time_ms is not None and time_ms <= limit_ms:
            return number
    return None


def table(found: dict[str, Any]) -> str:
    lines = [
        "| strategy | " + " | ".join(f"within {near:.0%}" for near in _NEAR) + " |",
        "|---|---|---|",
    ]
    for strategy, runs in found["evaluations_to"].items():
        medians = [
            statistics.median(math.inf if count is None else count for count in counts)
            for counts in runs.values()
        ]
        cells = [f"> {_EVALUATIONS}" if m == math.inf else f"{m:.0f}" for m in medians]
        lines.append(f"| {strategy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
