"""Measures which share of a trial makes its inputs, references and tolerances.

    OMP_NUM_THREADS=1 python benchmarks/preparation.py [--spaces SPACE ...] [--trials 24] [--sets]
        [-o FILE]

Each space is searched on the CPU, and its best kernel confirmed. Without --spaces these are
softmax-cpu, rms-norm-cpu and the C++ kernel that `evotune init` writes. The stages of each outcome
give the shares: `prepare` in all stages after compiling, over the trials that reached the device,
and in the champion's confirmation (its first process). With --sets only the CPU time of making the
input sets of one seed is measured, with one thread and in this process: other work on the machine
disturbs it least. Copy the file into an older tree to compare both in one sitting.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from evotune.cli.init_command import scaffold
from evotune.problems import Case, create_problem
from evotune.runs.observer import Progress, SilentObserver
from evotune.runs.setup import load_kernel_setup
from evotune.runs.spaces import find_space
from evotune.runs.starting import RunRequest, start_run
from evotune.trial import Outcome, Trial
from evotune.user_code import trust
from evotune.verify.pool import InputPool

NEW_KERNEL = "new-kernel"
SPACES = ("softmax-cpu", "rms-norm-cpu", NEW_KERNEL)


@dataclass
class Stages(SilentObserver):
    """The stages of a run's trials and of its confirmations, in seconds."""

    searched: list[Mapping[str, float]] = field(default_factory=list)
    confirmations: list[Mapping[str, float]] = field(default_factory=list)

    def told(self, trial: Trial, progress: Progress) -> None:
        if "prepare" in trial.outcome.stage_s:
            self.searched.append(trial.outcome.stage_s)

    def confirmed(self, trial: Trial, outcome: Outcome) -> None:
        self.confirmations.append(outcome.stage_s)


def space_path(name: str, folder: Path) -> str:
    """The space's file or name; the new kernel's files are written into the folder."""
    if name != NEW_KERNEL:
        return name
    for file, text in scaffold(NEW_KERNEL, "cpp").items():
        (folder / file).write_text(text)
        trust.agree(hashlib.sha256(text.encode()).hexdigest())
    return str(folder / "space.yaml")


def of_run(space: str, trials: int, folder: Path) -> dict[str, float]:
    stages = Stages()
    options = {"trials": trials, "champions": 1}
    start_run(RunRequest(space, "cpu", runs_dir=folder / "runs", options=options), stages)
    found: dict[str, float] = {"trials": len(stages.searched)}
    for name, each in (("search", stages.searched), ("confirmation", stages.confirmations)):
        prepare_s = sum(one.get("prepare", 0.0) for one in each)
        # "repeat" has the processes after a champion's first one, as a whole.
        rest = ("compile", "prepare", "repeat")
        other_s = sum(s for one in each for stage, s in one.items() if stage not in rest)
        found[f"{name}_prepare_s"] = prepare_s
        found[f"{name}_other_s"] = other_s
        found[f"{name}_share"] = prepare_s / (prepare_s + other_s) if each else 0.0
    return found


def sets_cpu_s(space: str) -> dict[str, float]:
    """CPU seconds of all sets of a seed, for the cases of a trial and those of a confirmation."""
    setup = load_kernel_setup(find_space(space), "cpu")
    problem = create_problem(setup.problem_spec.name, setup.problem_spec.dtype, setup.root)
    _make(InputPool(problem, secret="warm"), setup.cases["timed"][:1], problem.input_kinds)
    found = {}
    pool = InputPool(problem, secret="measured")
    for role, cases in setup.cases.items():
        started = time.process_time()
        _make(pool, cases, problem.input_kinds)
        found[f"{role}_cpu_s"] = time.process_time() - started
    return found


def _make(pool: InputPool, cases: Sequence[Case], kinds: Sequence[str]) -> None:
    for case in cases:
        for kind in kinds:
            pool.get(case, kind, 0)
        pool.get(case, "normal", 1)
        pool.changed(case, 0)


def measured(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, float]]]:
    for name in options.spaces:
        with tempfile.TemporaryDirectory() as text:
            space = space_path(name, Path(text))
            if options.sets:
                yield name, sets_cpu_s(space)
            else:
                yield name, of_run(space, options.trials, Path(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--spaces", nargs="+", default=SPACES)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--sets", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, figures in measured(options):
        found[name] = {key: round(value, 3) for key, value in figures.items()}
        print(f"{name:14}", "  ".join(f"{key} {value:g}" for key, value in found[name].items()))
    if options.output:
        record = {
            "command": ["python", "benchmarks/preparation.py", *sys.argv[1:]],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "spaces": found,
        }
        options.output.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
