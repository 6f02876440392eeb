"""Measures how busy a coordinator keeps its devices; children that sleep stand for real workers.

    python benchmarks/lab/pipeline.py [--devices 1 2 4] [--compilers-per-device 16]
        [--compile-s 0.7]
        [--device-s 0.08] [--trials 400] [--lookahead-per-device 24] [-o FILE]

The search, the planner, the store and the executor with its thread are those of a run of
attention-mma. Compilers and device workers are processes that wait for as long as real ones take
(log-normal, with these means) and answer as they do. So the idle time of a device is the
coordinator's fault. Each line shows trials per minute, the share of the time in which devices were
at work, and the coordinator's CPU time per trial.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evotune.run_options import RunOptions
from evotune.runs.observer import SilentObserver
from evotune.runs.search_loop import SearchLoop
from evotune.runs.setup import load_kernel_setup
from evotune.search.catalog import create_strategy
from evotune.store import RunStore
from evotune.workers import child
from evotune.workers.compile_pool import CompilePool
from evotune.workers.device_slot import DeviceSlot, ProblemSource
from evotune.workers.local import BackgroundExecutor, LocalExecutor

SPACE = Path(__file__).parents[2] / "search_spaces" / "attention_mma.yaml"
PRETENDER = str(Path(__file__).parent / "pipeline_child.py")


class _Pretenders:
    """Replaces the module `subprocess` where children are started: starts pretenders instead."""

    PIPE = subprocess.PIPE
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, mean_s: dict[str, float]) -> None:
        self._mean_s = mean_s

    def Popen(self, words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:  # noqa: N802
        role = words[words.index("-m") + 1].rpartition(".")[2]
        mean_s = str(self._mean_s[role])
        return subprocess.Popen([sys.executable, PRETENDER, role, mean_s], **options)


def measure(devices: int, options: argparse.Namespace) -> dict[str, float]:
    mean_s = {"compile_worker": options.compile_s, "device_worker": options.device_s}
    child.subprocess = _Pretenders(mean_s)  # type: ignore[assignment]
    setup = load_kernel_setup(SPACE, "h200", compile_only=True)
    lookahead = options.lookahead_per_device * devices
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        logs = folder / "logs"
        logs.mkdir()
        compilers = options.compilers_per_device * devices
        source = ProblemSource("attention", "float16", Path())
        slots = [
            DeviceSlot(logs, setup.profile, source, deterministic=True, name=f"device-{index}")
            for index in range(devices)
        ]
        pool = CompilePool(logs, folder / "cache", processes=compilers)
        executor = LocalExecutor(pool, slots, exclusive=False, rules=setup.planner.rules)
        executor.open_devices()
        time.sleep(0.1 * compilers)
        background = BackgroundExecutor(executor)
        how = RunOptions(lookahead=lookahead, trials=options.trials * devices)
        with RunStore.create(folder / "run.sqlite") as store:
            loop = SearchLoop(
                store,
                create_strategy("evolution", setup.space, how),
                background,
                setup.planner.proposal,
                options=how,
                searched_s=0.0,
                stop=lambda: False,
                observer=SilentObserver(),
            )
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            loop.run()
            wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
            outcomes = [trial.outcome for trial in store.trials()]
        background.close()
    device_s = sum(outcome.stage_s.get("measure", 0.0) for outcome in outcomes)
    return {
        "devices": devices,
        "lookahead": lookahead,
        "trials": len(outcomes),
        "duplicates": sum(outcome.duplicate_of is not None for outcome in outcomes),
        "ok": sum(outcome.ok for outcome in outcomes),
        "trials_per_minute": 60 * len(outcomes) / wall_s,
        "busy_share": device_s / devices / wall_s,
        "coordinator_cpu_ms": 1e3 * cpu_s / len(outcomes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="*", default=(1, 2, 4))
    parser.add_argument("--compilers-per-device", type=int, default=16)
    parser.add_argument("--compile-s", type=float, default=0.7)
    parser.add_argument("--device-s", type=float, default=0.08)
    parser.add_argument("--trials", type=int, default=400, help="for each device")
    parser.add_argument("--lookahead-per-device", type=int, default=24)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = []
    for devices in options.devices:
        row = measure(devices, options)
        rows.append(row)
        print({name: round(value, 3) for name, value in row.items()}, flush=True)
    if options.output:
        data = {
            "command": ["python", "benchmarks/lab/pipeline.py", *sys.argv[1:]],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "rows": rows,
        }
        options.output.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
