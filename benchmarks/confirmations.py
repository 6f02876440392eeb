"""Do the intervals of confirmations cover what confirmations come to?

    python benchmarks/confirmations.py [--space SPACE] [--count 40] [--busy 0 2] [-o FILE]

The default configuration of a space (the C++ kernel that `evotune init` writes, if none is given)
is confirmed again and again: its timed cases in as many fresh processes as a champion gets, without
the checks that a champion passes first. The pooled median is
that of all processes. `covered` counts the confirmations whose interval has it, of `count`; 95% are
to be expected, and 36 of 40 demanded. `--busy` runs so many busy processes beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from carries_over import busy_processes

from evotune.backends import registry
from evotune.backends.cpu import device as cpu
from evotune.cli.scaffolding import scaffold
from evotune.engine.planning import Planner
from evotune.engine.repetition import outcome_of, repeated, timed_again
from evotune.engine.setup import Setup, load_setup
from evotune.engine.spaces import find_space
from evotune.engine.work import open_kernel_executor
from evotune.execute.local import LocalExecutor
from evotune.measure.processes import TOO_NOISY, fitness_by_process
from evotune.trial import Outcome

NEW_KERNEL = "new-kernel"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--space")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 2])
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    output = arguments.output and arguments.output.absolute()
    rows = []
    for busy in arguments.busy:
        # In its folder, as a space of one's own needs no agreement.
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            busy_processes(busy),
        ):
            space = arguments.space or _new_kernel(Path(folder))
            row = {"busy": busy, **_row(space, Path(folder), arguments.count)}
        rows.append(row)
        print(json.dumps({name: row[name] for name in row if name != "confirmations"}), flush=True)
        if output:
            _write(output, arguments.space or NEW_KERNEL, rows)


def _new_kernel(folder: Path) -> str:
    for name, text in scaffold(NEW_KERNEL, "cpp").items():
        (folder / name).write_text(text)
    return str(folder / "space.yaml")


def _row(space: str, folder: Path, count: int) -> dict[str, Any]:
    setup = load_setup(find_space(space), "cpu")
    executor = open_kernel_executor(setup, folder)
    try:
        _choose_baselines(executor, setup)
        started_s = time.monotonic()
        found = [_confirmation(executor, setup, number) for number in range(count)]
        seconds = time.monotonic() - started_s
    finally:
        executor.close()
    processes = [value for outcome in found for value in fitness_by_process(outcome)]
    pooled = statistics.median(processes)
    return {
        "covered": sum(_low(o) <= pooled <= _high(o) for o in found),
        "count": count,
        "too_noisy": sum(TOO_NOISY in outcome.flags for outcome in found),
        "processes": len(processes),
        "pooled_median": round(math.exp(pooled), 4),
        "spread_of_processes": round(math.exp(max(processes) - min(processes)) - 1, 4),
        "seconds_each": round(seconds / count, 1),
        "load_at_the_end": round(os.getloadavg()[0], 1),
        "confirmations": [
            [round(math.exp(value), 4) for value in (o.fitness or 0.0, _low(o), _high(o))]
            for o in found
        ],
    }


def _choose_baselines(executor: LocalExecutor, setup: Setup) -> None:
    """The fastest of each case, as a run would choose once."""
    cases = [case for group in setup.cases.values() for case in group]
    timings = [t for t in executor.time_baselines(cases).timings if t.passed]
    executor.baselines = {
        case.label: min((t for t in timings if t.case == case.label), key=lambda t: t.time_us).name
        for case in cases
    }


def _confirmation(executor: LocalExecutor, setup: Setup, number: int) -> Outcome:
    assert isinstance(setup.planner, Planner)
    proposal = setup.planner.proposal(number, setup.space.default(), confirm=True)
    run = functools.partial(outcome_of, executor)
    least = registry.named("cpu").least_half_width
    outcome = repeated(run, proposal, run(timed_again(proposal)), least_width=least)
    assert outcome.ok, outcome
    return outcome


def _low(outcome: Outcome) -> float:
    assert outcome.fitness_low is not None
    return outcome.fitness_low


def _high(outcome: Outcome) -> float:
    assert outcome.fitness_high is not None
    return outcome.fitness_high


def _write(path: Path, space: str, rows: list[dict[str, Any]]) -> None:
    record = {
        "command": f"python benchmarks/confirmations.py {' '.join(sys.argv[1:])}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": cpu.profile().name,
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "space": space,
        "rows": rows,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
