"""Compares what judging right kernels costs in two checkouts: a trial of a search, a confirmation.

    python benchmarks/gate_cost.py --against OTHER_CHECKOUT [--device cpu] [--rounds 5]
        [--configurations 3] [--spaces NAME ...] [--stages search confirmation]
        -o benchmarks/results/gate_cost_cpu.json
    python benchmarks/gate_cost.py --table benchmarks/results/gate_cost_cpu.json

Judges the default configuration of each shipped space, and neighbours of it, in this checkout and
in the other one. The two take turns, each time in fresh processes, and which one begins alternates:
other work on the machine meets both. On a GPU the space is attention-mma at the mission shape.

- wall: seconds of the trial, without compiling
- cpu: seconds of processor time of all processes that the trial started, without compiling

A kernel is compiled before, by a trial that does not count. Ratios are of this checkout's medians
to the other one's. A confirmation here is that of one process; a run repeats its timing in others.
Beside other work set OMP_NUM_THREADS=1: threads that wait for each other's cores take very long.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
SEARCH, CONFIRMATION = "search", "confirmation"
SPACES = {"cpu": ("attention_cpu", "softmax_cpu", "rms_norm_cpu"), "cuda": ("attention_mma",)}
MISSION = {
    "shapes": [{"batch": 1, "heads": 8, "seq_len": 512, "head_dim": 64}],
    "variants": [{"causal": False}],
}
_LONGEST_S = 900.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


# --- a child: one checkout, one space -------------------------------------------------------------


def child(space: Path, device: str, count: int, seed: int, stages: Sequence[str]) -> None:
    """Prints a JSON line for each judgement. Imports evotune from the checkout on PYTHONPATH."""
    from evotune.trial import Configuration

    opening, setups, executors = (_module(*names) for names in _MODULES)
    open_kernel_executor, load_kernel_setup = opening.open_kernel_executor, setups.load_kernel_setup
    HELD_OUT, TIMED = executors.HELD_OUT, executors.TIMED  # noqa: N806

    setup = load_kernel_setup(space, device)
    planner = setup.planner
    default = Configuration({**planner.bound.default(), **setup.document.default})
    with tempfile.TemporaryDirectory() as folder:
        executor = open_kernel_executor(setup, Path(folder))
        try:
            report = executor.time_baselines([*setup.cases[TIMED], *setup.cases[HELD_OUT]])
            passed = sorted((t for t in report.timings if t.passed), key=lambda t: -t.time_us)
            executor.baselines = {timing.case: timing.name for timing in passed}
            number = seed * 1000
            for index, configuration in enumerate(_configurations(planner, default, count)):
                for stage in ("warm-up", *stages):
                    number += 1
                    confirm = stage == CONFIRMATION
                    proposal = planner.proposal(number, configuration, confirm=confirm)
                    # A device is named so that the kernel is measured again, though its code is
                    # known.
                    proposal = dataclasses.replace(proposal, device=0)
                    started_s, busy_s = time.monotonic(), _busy_s(os.getpid())
                    executor.submit(proposal)
                    outcome = _outcome(executor)
                    found = {
                        "configuration": index,
                        "stage": stage,
                        "outcome": outcome.kind.value,
                        "reason": outcome.reason,
                        "wall_s": time.monotonic() - started_s,
                        "cpu_s": _busy_s(os.getpid()) - busy_s,
                        "stage_s": dict(outcome.stage_s),
                    }
                    if stage != "warm-up":
                        print(json.dumps(found), flush=True)
        finally:
            executor.close()


_MODULES = (
    ("runs.kernel_executor", "engine.kernel_executor"),
    ("runs.setup", "engine.setup"),
    ("workers.executor", "execute.executor"),
)
"""Their names today, and those of checkouts up to d7303cd5."""


def _module(*names: str) -> Any:
    """The first of these modules of evotune that the checkout has."""
    found = (name for name in names if importlib.util.find_spec(f"evotune.{name.split('.')[0]}"))
    return importlib.import_module(f"evotune.{next(found)}")


def _configurations(planner: Any, default: Any, count: int) -> Iterator[Any]:
    """The default, and valid configurations that differ from it in one parameter."""
    from evotune.trial import Configuration

    yield default
    left = count - 1
    for parameter in planner.bound.parameters:
        for value in parameter.values:
            if left == 0:
                return
            near = Configuration({**default, parameter.name: value})
            if value != default[parameter.name] and not planner.proposal(0, near).rejection:
                yield near
                left -= 1
                break


def _outcome(executor: Any) -> Any:
    deadline = time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline:
        for _, outcome in executor.poll(0.05):
            return outcome
    raise AssertionError("no outcome")


def _busy_s(process: int) -> float:
    """Processor time of a process and its descendants, including those that have ended."""
    parents: dict[int, list[int]] = defaultdict(list)
    times: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(fields[1])].append(int(folder.name))
            times[int(folder.name)] = _TICK_S * sum(map(int, fields[11:15]))
    total, left = 0.0, [process]
    while left:
        each = left.pop()
        total += times.get(each, 0.0)
        left += parents[each]
    return total


# --- the two checkouts in turn --------------------------------------------------------------------


def judged(
    checkout: Path, space: str, options: argparse.Namespace, seed: int
) -> list[dict[str, Any]]:
    import yaml

    document = yaml.safe_load((checkout / f"search_spaces/{space}.yaml").read_text())
    document["root"] = str(checkout)
    if options.device != "cpu":
        document["problem"] = {**document["problem"], **MISSION}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "space.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        command = [sys.executable, str(Path(__file__).resolve()), "--child", str(path)]
        command += ["--device", options.device, "--configurations", str(options.configurations)]
        command += ["--seed", str(seed), "--stages", *options.stages]
        path_before = os.environ.get("PYTHONPATH", "")
        environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{path_before}"}
        done = subprocess.run(
            command, env=environment, cwd=folder, check=True, stdout=subprocess.PIPE, text=True
        )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def compared(options: argparse.Namespace, rows: list[dict[str, Any]]) -> Iterator[None]:
    """Adds the judgements of both checkouts to `rows`, round by round."""
    sides = {"this": HERE, "other": options.against.resolve()}
    spaces = options.spaces or SPACES["cpu" if options.device == "cpu" else "cuda"]
    for seed in range(options.rounds):
        for space in spaces:
            for side in sorted(sides, reverse=seed % 2 == 0):
                for found in judged(sides[side], space, options, seed):
                    rows.append({"space": space, "side": side, "round": seed, **found})
                yield


def commit(checkout: Path) -> str:
    """The commit of a checkout; the name of a folder that is none."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    return found.stdout.strip() or checkout.resolve().name


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each space and stage: medians over rounds and configurations, this over other."""
    lines = [
        "| space | stage | judgements | wall | cpu | verify | refused |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["space"], row["stage"]].append(row)
        groups[row["space"], "both"].append(row)
    for (space, stage), group in sorted(groups.items()):
        figures = [_ratio(group, name) for name in ("wall_s", "cpu_s", "verify")]
        refused = sum(row["outcome"] != "ok" for row in group)
        words = (space, stage, len(group), *figures, refused)
        lines.append("| " + " | ".join(map(str, words)) + " |")
    return "\n".join(lines)


def _ratio(group: Sequence[Mapping[str, Any]], figure: str) -> str:
    """The sum over stages and configurations of their medians: this side's over the other's."""
    values: dict[str, dict[tuple[str, int], list[float]]] = {}
    for row in group:
        value = row[figure] if figure in row else row["stage_s"].get(figure, 0.0)
        of_side = values.setdefault(row["side"], defaultdict(list))
        of_side[row["stage"], row["configuration"]].append(value)
    if values.keys() != {"this", "other"}:
        return "-"
    sums = {side: sum(map(statistics.median, found.values())) for side, found in values.items()}
    return f"{sums['this'] / sums['other']:.2f}x" if sums["other"] else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="the other checkout, a folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--spaces", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--configurations", type=int, default=3)
    parser.add_argument("--stages", nargs="+", default=[SEARCH, CONFIRMATION])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path, help="print that file's table, run nothing")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.device, options.configurations, options.seed, options.stages)
        return
    if options.table:
        print(table(json.loads(options.table.read_text())["judgements"]))
        return
    if options.against is None:
        parser.error("--against says which checkout to compare with")
    rows: list[dict[str, Any]] = []
    for _ in compared(options, rows):
        if options.output:
            about = {
                "device": options.device,
                "this": commit(HERE),
                "other": commit(options.against),
            }
            options.output.write_text(json.dumps({"about": about, "judgements": rows}) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
