"""Counts how often the interval of a measurement covers the median of all measurements.

    python benchmarks/lab/confirmations.py [--space SPACE] [--of champion itself] [--count 40]
        [--busy 0 2] [-o FILE]

The default configuration of a space (without SPACE: the C++ kernel that `evotune init` writes) is
measured `--count` times. Each measurement takes as many fresh processes as a run takes, and leaves
out the checks that a champion passes first.

- champion: timed against the baseline
- itself: timed against itself. `ablate` is measured as the first row of `evotune ablate` (six
  processes), `remeasure` as by `compare --remeasure` (as many of the same processes as it would
  have taken)

The pooled median is the median over the processes of all measurements. `covered` counts the
measurements, of `count`, whose interval covers it: 95% are expected, and 36 of 40 are required.
`--busy` runs that many busy processes beside the measurements. FILE is written after each
measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from carries_over import busy_processes

from evotune.backends import registry
from evotune.backends.cpu import cpu_profile
from evotune.cli.init_command import scaffold
from evotune.runs.confirming import outcome_of, repeated, timed_again
from evotune.runs.kernel_executor import open_kernel_executor
from evotune.runs.reopening import against
from evotune.runs.setup import KernelSetup, load_kernel_setup
from evotune.runs.spaces import find_space
from evotune.timing.processes import MOST, TOO_NOISY, fitness_by_process
from evotune.trial import Outcome
from evotune.workers.executor import Proposal
from evotune.workers.local import LocalExecutor

NEW_KERNEL = "new-kernel"
LONG = ("intervals", "in_each_process")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--space")
    parser.add_argument("--of", nargs="+", choices=[*KINDS], default=["champion"])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 2])
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    output = arguments.output and arguments.output.absolute()
    done: list[dict[str, Any]] = []
    for kind, busy in itertools.product(arguments.of, arguments.busy):
        # Inside the space's folder, since code of the working folder needs no agreement.
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            busy_processes(busy),
        ):
            space = arguments.space or _new_kernel(Path(folder))
            rows: list[dict[str, Any]] = []
            for found in _measured(space, Path(folder), kind, arguments.count):
                rows = [{"busy": busy, **row} for row in found]
                if output:
                    _write(output, arguments.space or NEW_KERNEL, [*done, *rows])
        done += rows
        for row in rows:
            print(json.dumps({name: row[name] for name in row if name not in LONG}), flush=True)


def _new_kernel(folder: Path) -> str:
    for name, text in scaffold(NEW_KERNEL, "cpp").items():
        (folder / name).write_text(text)
    return str(folder / "space.yaml")


def _measured(space: str, folder: Path, kind: str, count: int) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows so far after each measurement."""
    setup = load_kernel_setup(find_space(space), "cpu")
    executor = open_kernel_executor(setup, folder)
    try:
        _choose_baselines(executor, setup)
        started_s = time.monotonic()
        loads: list[float] = []
        found: list[Sequence[Outcome]] = []
        processes: list[float] = []
        for number in range(count):
            outcomes, fitnesses = KINDS[kind](executor, setup, number)
            found.append(outcomes)
            processes += fitnesses
            loads.append(os.getloadavg()[0])
            about = {
                "seconds_each": round((time.monotonic() - started_s) / len(found), 1),
                "load": [round(min(loads), 1), round(max(loads), 1)],
            }
            columns = zip(NAMES[kind], zip(*found, strict=True), strict=True)
            yield [{"of": name, **_row(column, processes), **about} for name, column in columns]
    finally:
        executor.close()


def _row(found: Sequence[Outcome], processes: Sequence[float]) -> dict[str, Any]:
    pooled = statistics.median(processes)
    return {
        "covered": sum(_low(o) <= pooled <= _high(o) for o in found),
        "count": len(found),
        "too_noisy": sum(TOO_NOISY in outcome.flags for outcome in found),
        "processes": len(processes),
        "pooled_median": round(math.exp(pooled), 4),
        "spread_of_processes": round(math.exp(max(processes) - min(processes)) - 1, 4),
        "in_each_process": [round(math.exp(value), 4) for value in processes],
        "intervals": [
            [round(math.exp(value), 4) for value in (o.fitness or 0.0, _low(o), _high(o))]
            for o in found
        ],
    }


def _choose_baselines(executor: LocalExecutor, setup: KernelSetup) -> None:
    """Chooses the fastest baseline of each case, as a run does once."""
    cases = [case for group in setup.cases.values() for case in group]
    timings = [t for t in executor.time_baselines(cases).timings if t.passed]
    executor.baselines = {
        case.label: min((t for t in timings if t.case == case.label), key=lambda t: t.time_us).name
        for case in cases
    }


Measured = tuple[Sequence[Outcome], Sequence[float]]
"""An outcome for each name of the kind (`NAMES`), and the ln speedup in each process."""


def _champion(executor: LocalExecutor, setup: KernelSetup, number: int) -> Measured:
    proposal = timed_again(setup.planner.proposal(number, setup.space.default(), confirm=True))
    run = functools.partial(_timed, executor)
    least = registry.named("cpu").least_half_width
    outcome = repeated(run, proposal, run(proposal), least_width=least)
    return (outcome,), fitness_by_process(outcome)


def _itself(executor: LocalExecutor, setup: KernelSetup, number: int) -> Measured:
    proposal = timed_again(setup.planner.proposal(number, setup.space.default()))
    proposal = against(proposal, proposal.cases)
    outcomes = [_timed(executor, proposal) for _ in range(MOST)]
    each = [fitness for fitness in (outcome.fitness for outcome in outcomes) if fitness is not None]
    again = [iter(outcomes), iter(outcomes)]
    ablate = repeated(lambda _: next(again[0]), proposal, next(again[0]), processes=MOST)
    remeasure = repeated(lambda _: next(again[1]), proposal, next(again[1]))
    return (ablate, remeasure), each


def _timed(executor: LocalExecutor, proposal: Proposal) -> Outcome:
    outcome = outcome_of(executor, proposal)
    assert outcome.ok, outcome
    return outcome


KINDS = {"champion": _champion, "itself": _itself}
NAMES = {"champion": ("champion",), "itself": ("ablate", "remeasure")}


def _low(outcome: Outcome) -> float:
    assert outcome.fitness_low is not None
    return outcome.fitness_low


def _high(outcome: Outcome) -> float:
    assert outcome.fitness_high is not None
    return outcome.fitness_high


def _write(path: Path, space: str, rows: list[dict[str, Any]]) -> None:
    record = {
        "command": f"python benchmarks/lab/confirmations.py {' '.join(sys.argv[1:])}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": cpu_profile.profile().name,
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "space": space,
        "rows": rows,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
