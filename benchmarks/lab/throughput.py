"""Measures throughput: trials per minute, the time by stage, and how busy the device is.

    python benchmarks/lab/throughput.py [--device cuda:0 | --gpus N] [--trials 1000]
        [--strategy NAME]
        [--lookahead N] [--job NAME] [--part NAME ...]
        [-o benchmarks/results/throughput_DEVICE.json]
    python benchmarks/lab/throughput.py --table benchmarks/results/throughput_DEVICE.json

- search: makes one run with an empty compile cache, of attention rung 3 at the mission shape or of
  another of attention_cuda.py's jobs (on the CPU: attention-cpu as it ships). It compares the wall
  time, from the first proposal to the last outcome, with the least possible: the larger of compile
  CPU-seconds / processes and device seconds / devices (their sum on the CPU, where compiling and
  measuring take turns). With --gpus or --job the results keep a row for each job and number of
  GPUs. To see the gain of more GPUs, give each number of them its share of the cores (`taskset`).
- plain, kernel_tuner: sends random configurations of one space through evotune and, fewer of them,
  through Kernel Tuner's NVRTC backend (GPU only; needs kernel-tuner and cuda-bindings). Kernel
  Tuner takes as many samples of each as evotune's mean, rounded up. The space is restricted to
  configurations that Kernel Tuner can launch: one launch, no cluster, at most 48 KiB of shared
  memory. A sample of Kernel Tuner is one launch, of evotune a paired round of hundreds; and Kernel
  Tuner checks no result there.

Device seconds are the workers' time on trials. The idle share is their time between trials, when
they wait or are renewed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attention_cuda import JOBS, JOBS_BY_NAME
from tuning import derive

from evotune.runs import environment
from evotune.runs.observer import Progress, SilentObserver
from evotune.runs.setup import GpuRequest
from evotune.runs.starting import RunRequest, start_run
from evotune.store import RunStore
from evotune.trial import Trial
from evotune.workers.local import compile_processes

PARTS = ("search", "plain", "kernel_tuner")
DEVICE_STAGES = ("prepare", "load", "verify", "measure")
PLAIN_CONFIGURATIONS, PEER_CONFIGURATIONS = 600, 60
_SAMPLE_S = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")


class Clock(SilentObserver):
    """Notes when the search began and when its last trial was told, and the CPU-seconds of the
    compile workers in between: before it they start, and after it they compile for confirmation."""

    def __init__(self, children: ChildTimes) -> None:
        self._children = children
        self.compile_cpu_s = 0.0
        self.began_s = self.ended_s = 0.0
        self.began_cpu_s = self.ended_cpu_s = 0.0
        self._searching = False

    def phase(self, text: str) -> None:
        if self._searching:
            self.compile_cpu_s += self._children.total_s("compile_worker")
        self._searching = text == "searching"
        if self._searching:
            self.compile_cpu_s -= self._children.total_s("compile_worker")
            self.began_s, self.began_cpu_s = time.monotonic(), time.process_time()

    def told(self, trial: Trial, progress: Progress) -> None:
        if self._searching:
            self.ended_s, self.ended_cpu_s = time.monotonic(), time.process_time()


class ChildTimes(threading.Thread):
    """Samples the CPU-seconds of this process's compile and device workers while they live."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._seen: dict[tuple[str, int], float] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self._seen = {**self._seen, **dict(_children())}

    def total_s(self, role: str) -> float:
        """The CPU-seconds until now."""
        self._look()
        return sum(seconds for (name, _), seconds in self._seen.items() if name == role)

    def stop(self) -> None:
        self._ended.set()
        self.join()


def _children() -> Iterator[tuple[tuple[str, int], float]]:
    """Yields ((role, pid), CPU-seconds) of each worker, with those of compilers it waited for."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if str(os.getpid()).encode() in words and b"-m" in words:
            role = words[words.index(b"-m") + 1].decode().rpartition(".")[2]
            yield (role, int(folder.name)), sum(map(int, fields[11:15])) / _TICKS


def search(space: Path, options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """The figures of one run with an empty cache."""
    gpus = None if options.gpus is None else GpuRequest(options.gpus)
    children = ChildTimes()
    clock = Clock(children)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EVOTUNE_CACHE_DIR"] = f"{folder}/cache"
        request = RunRequest(
            str(space),
            device="auto" if gpus else options.device,
            runs_dir=Path(folder) / "runs",
            gpus=gpus,
            options={"lookahead": options.lookahead, "champions": 1, **more},
            command=("python", "benchmarks/lab/throughput.py"),
        )
        children.start()
        result = start_run(request, clock)
        children.stop()
        with RunStore.open_for_reading(result.run.store) as store:
            outcomes = [trial.outcome for trial in store.trials()]
            settings = store.meta("settings")
        described = dict(environment.read(result.run.environment))
    described["device"] = {n: v for n, v in described["device"].items() if n != "id"}
    described.pop("command")
    stages: dict[str, list[float]] = {}
    for outcome in outcomes:
        for stage, seconds in outcome.stage_s.items():
            stages.setdefault(stage, []).append(seconds)
    devices = options.gpus or 1
    on_cpu = described["device"]["backend"] == "cpu"
    processes = compile_processes(0 if on_cpu else devices)
    wall_s = clock.ended_s - clock.began_s
    device_s = sum(sum(stages.get(stage, ())) for stage in DEVICE_STAGES)
    compile_cpu_s = clock.compile_cpu_s
    stage_s = (compile_cpu_s / processes, device_s / devices)
    least_s = sum(stage_s) if on_cpu else max(stage_s)
    samples = [m.samples for outcome in outcomes for m in outcome.measurements]
    return {
        "trials": len(outcomes),
        "lookahead": settings["lookahead"],
        "strategy": settings["strategy"],
        "devices": devices,
        "cores": len(os.sched_getaffinity(0)),
        "compile_processes": processes,
        "wall_s": wall_s,
        "trials_per_minute": 60 * len(outcomes) / wall_s,
        "compile_cpu_s": compile_cpu_s,
        "coordinator_cpu_s": clock.ended_cpu_s - clock.began_cpu_s,
        "device_s": device_s,
        "least_wall_s": least_s,
        "wall_to_least": wall_s / least_s,
        "device_idle_share": 1 - device_s / devices / wall_s,
        "duplicates": sum(outcome.duplicate_of is not None for outcome in outcomes),
        "ok": sum(outcome.ok for outcome in outcomes),
        "samples_mean": statistics.fmean(samples) if samples else None,
        "stages": {
            stage: {"trials": len(s), "total_s": sum(s), "median_s": statistics.median(s)}
            for stage, s in stages.items()
        },
        "environment": described,
    }


def space_of(
    job: str, backend: str, folder: Path, changes: Mapping[str, Any] | None = None
) -> Path:
    path = folder / "space.yaml"
    if backend == "cpu":
        return derive("attention_cpu", {}, path)
    made = JOBS_BY_NAME[job]
    return derive(made.space, {"problem": made.problem(), **(changes or {})}, path)


def table(data: Mapping[str, Any]) -> list[str]:
    lines = []
    parts = [(part, data[part]) for part in ("search", "plain") if part in data]
    for part, found in (*parts, *(("search", row) for row in data.get("by_gpus", ()))):
        lines.append(
            f"{part}, {found.get('job', JOBS[0].name)}: {found['trials']} trials "
            f"({found['ok']} ok, {found['duplicates']} duplicates) "
            f"in {found['wall_s']:.1f} s on {found['devices']} device(s), {found['cores']} cores "
            f"({found['compile_processes']} compile processes), lookahead {found['lookahead']}: "
            f"{found['trials_per_minute']:.0f} trials per minute"
        )
        lines.append(
            f"  least possible {found['least_wall_s']:.1f} s (compile {found['compile_cpu_s']:.1f} "
            f"CPU-s, device {found['device_s']:.1f} s): wall is {found['wall_to_least']:.2f} times "
            f"that; devices idle {found['device_idle_share']:.1%}"
        )
        if "coordinator_cpu_s" in found:
            lines.append(f"  coordinator {found['coordinator_cpu_s']:.1f} CPU-s")
        for stage, times in found["stages"].items():
            lines.append(
                f"  {stage:9} {times['total_s']:9.1f} s in {times['trials']:5} trials, median "
                f"{1e3 * times['median_s']:.0f} ms"
            )
    peer = data.get("kernel_tuner")
    if peer:
        lines.append(
            f"Kernel Tuner {peer['version']}: {peer['candidates']} candidates in "
            f"{peer['wall_s']:.1f} s: {peer['candidates_per_minute']:.0f} per minute at "
            f"{peer['iterations']} samples each"
        )
        if "plain" in data:
            times = data["plain"]["trials_per_minute"] / peer["candidates_per_minute"]
            lines.append(f"evotune: {times:.1f} times as many per minute")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--strategy", default="evolution")
    parser.add_argument("--lookahead", type=int)
    parser.add_argument("--job", choices=JOBS_BY_NAME, default=JOBS[0].name)
    parser.add_argument("--part", nargs="*", choices=PARTS, default=[PARTS[0]])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.table.read_text()))))
        return
    backend = "cpu" if options.device == "cpu" else "cuda"
    if options.job != JOBS[0].name and (backend == "cpu" or options.part != [PARTS[0]]):
        parser.error("--job is for the search on a GPU")
    data: dict[str, Any] = {}
    if options.output and options.output.exists():
        data = json.loads(options.output.read_text())
    for part in options.part:
        found = {
            "command": ["python", "benchmarks/lab/throughput.py", *sys.argv[1:]],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **_measure(part, options, backend, data.get("plain")),
        }
        if part == "search" and (options.gpus or options.job != JOBS[0].name):
            data["by_gpus"] = [*_others(data.get("by_gpus", ()), found), found]
        else:
            data[part] = found
        if options.output:  # after each part: a lent machine may be taken back before the last
            options.output.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join(table(data)))


def _others(rows: Iterable[dict[str, Any]], found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All rows but the one that `found` replaces."""
    for row in rows:
        same_job = row.get("job", JOBS[0].name) == found["job"]
        if not (same_job and row["devices"] == found["devices"]):
            yield row


def _measure(
    part: str, options: argparse.Namespace, backend: str, plain: Mapping[str, Any] | None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if part == "search":
            space = space_of(options.job, backend, folder)
            found = search(space, options, trials=options.trials, strategy=options.strategy)
            return {"job": "attention-cpu" if backend == "cpu" else options.job, **found}
        from throughput_kernel_tuner import LIMITS, measure

        space = space_of(JOBS[0].name, backend, folder, LIMITS)
        if part == "plain":
            return search(space, options, trials=PLAIN_CONFIGURATIONS, strategy="random")
        samples = plain["samples_mean"] if plain else 7  # 7 is its own default
        return measure(space, options.device, PEER_CONFIGURATIONS, math.ceil(samples))


if __name__ == "__main__":
    main()
