"""Shows the lookahead that keeps a run's devices busy, with the real search loop in virtual time.

    python benchmarks/lab/lookahead.py [--compile-s 0.55] [--device-s 0.126] [--trials 1000]
        [-o FILE]

A trial is compiled by one of the processes, then measured by one of the devices; times are drawn
from log-normal distributions of these means. Outcomes are told in the order of the proposals, as
`runs/search_loop.py` does, so a slow trial holds up those behind it. Each figure is the busiest
stage's share of the wall time: 1.0 means that nothing could be faster.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from evotune.backends.base.recorded import read_recorded_space
from evotune.run_options import RunOptions
from evotune.runs.observer import SilentObserver
from evotune.runs.search_loop import SearchLoop
from evotune.search.catalog import create_strategy
from evotune.store import RunStore
from evotune.trial import Outcome, OutcomeKind
from evotune.workers.executor import Proposal

RECORDING = Path(__file__).parents[2] / "tests" / "data" / "synthetic_recording.json.gz"
GPUS = (1, 2, 4, 8)
LOOKAHEADS = (8, 16, 32, 48, 64, 96, 128, 256)
CORES_PER_GPU = 16
SPREAD = 0.5  # sigma of ln(time): one trial in forty takes 2.7 times the median, or more
FAILED = Outcome(OutcomeKind.COMPILE_ERROR)


class VirtualPipeline:
    """Compile processes, then devices. Each takes the oldest trial that waits for it."""

    step = ""

    def __init__(self, processes: int, devices: int, compile_s: float, device_s: float) -> None:
        self._rng = random.Random(0)
        self._means = {"compile": compile_s, "device": device_s}
        self._free = {"compile": processes, "device": devices}
        self._waiting: dict[str, list[int]] = {"compile": [], "device": []}
        self._events: list[tuple[float, int, str]] = []
        self.now_s = 0.0
        self.busy_s = {"compile": 0.0, "device": 0.0}

    def submit(self, proposal: Proposal) -> None:
        heapq.heappush(self._waiting["compile"], proposal.number)

    def set_contender(self, fitness: float) -> None: ...

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        while True:
            for stage in ("compile", "device"):
                while self._free[stage] and self._waiting[stage]:
                    self._start(stage, heapq.heappop(self._waiting[stage]))
            if not self._events:
                return []
            self.now_s, number, stage = heapq.heappop(self._events)
            self._free[stage] += 1
            if stage == "device":
                return [(number, FAILED)]
            heapq.heappush(self._waiting["device"], number)

    def _start(self, stage: str, number: int) -> None:
        self._free[stage] -= 1
        mean_s = self._means[stage]
        duration_s = mean_s * self._rng.lognormvariate(-SPREAD * SPREAD / 2, SPREAD)
        self.busy_s[stage] += duration_s
        heapq.heappush(self._events, (self.now_s + duration_s, number, stage))

    def drop(self) -> None: ...

    def close(self) -> None: ...


def used_share(gpus: int, lookahead: int, options: argparse.Namespace) -> float:
    """The busy share of the stage that limits the run: the least possible wall time over the
    simulated one."""
    processes = options.processes or CORES_PER_GPU * gpus
    pipeline = VirtualPipeline(processes, gpus, options.compile_s, options.device_s)
    space = read_recorded_space(RECORDING).space
    how = RunOptions(lookahead=lookahead, trials=options.trials)
    with (
        tempfile.TemporaryDirectory() as folder,
        RunStore.create(Path(folder) / "store.sqlite") as store,
    ):
        SearchLoop(
            store,
            create_strategy("random", space, how),
            pipeline,
            Proposal,
            options=how,
            searched_s=0.0,
            stop=lambda: False,
            observer=SilentObserver(),
        ).run()
    least_s = max(pipeline.busy_s["compile"] / processes, pipeline.busy_s["device"] / gpus)
    return least_s / pipeline.now_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile-s", type=float, default=0.55)
    parser.add_argument("--device-s", type=float, default=0.126)
    parser.add_argument("--processes", type=int, default=0, help="compilers; 0: 16 a GPU")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    print(f"{'lookahead':>10}" + "".join(f"{f'{gpus} GPUs':>9}" for gpus in GPUS))
    shares: dict[str, dict[str, float]] = {}
    for lookahead in LOOKAHEADS:
        found = {str(gpus): round(used_share(gpus, lookahead, options), 3) for gpus in GPUS}
        shares[str(lookahead)] = found
        print(f"{lookahead:>10}" + "".join(f"{share:>9.0%}" for share in found.values()))
    if options.output:
        record = {
            "command": ["python", "benchmarks/lab/lookahead.py", *sys.argv[1:]],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "compile_s": options.compile_s,
            "device_s": options.device_s,
            "processes": options.processes or f"{CORES_PER_GPU} a GPU",
            "trials": options.trials,
            "share_of_the_possible_by_lookahead_and_gpus": shares,
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
