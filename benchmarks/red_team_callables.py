"""Judges the red team's Python callables with many seeds, on this machine's CPU.

    python benchmarks/red_team_callables.py [--seeds 20] [--minutes M] [--kinds cheat slow right]
        [--names NAME ...] [-o benchmarks/results/red_team_callables_cpu.json]
    python benchmarks/red_team_callables.py --table benchmarks/results/red_team_callables_cpu.json

Each callable of tests/red_team/callable_corpus.py goes through the search and, if it passes there
though it cheats, through the confirmation of a champion. Each seed has a session of its own, with
inputs and places of its own. Results that are in FILE already are not measured again, so a campaign
can be run in parts: `--minutes` ends a part.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

import evotune

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.callables import callable_trials
from tests.red_team.callable_corpus import (
    CHEAT,
    ENTRIES,
    RIGHT,
    SLOW,
    Entry,
    is_installed,
    judge,
    write_space,
)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one callable with one seed. `stage` had the last word. `as_expected`: a cheat
    was refused for the right reason, a slow one was not taken for fast, a right one passed."""

    name: str
    kind: str
    family: str
    round: int
    seed: int
    stage: str
    outcome: str
    reason: str
    as_expected: bool
    seconds: float

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.seed

    @property
    def passed(self) -> bool:
        return self.outcome == "ok"


def run(entries: Sequence[Entry], seeds: int, known: set[tuple[str, int]]) -> Iterator[Result]:
    """Yields the result of each callable and seed that is not known yet."""
    for seed in range(seeds):
        missing = [entry for entry in entries if (entry.name, seed) not in known]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            space = write_space(Path(folder) / "space.yaml")
            with callable_trials(space, Path(folder), secret=f"seed {seed}") as trials:
                for entry in missing:
                    started = time.monotonic()
                    stage, outcome = judge(trials, entry, number=seed)
                    yield Result(
                        entry.name,
                        entry.kind,
                        entry.family,
                        entry.round,
                        seed,
                        stage,
                        outcome.kind.value,
                        outcome.reason,
                        entry.is_as_expected(outcome),
                        round(time.monotonic() - started, 2),
                    )


def table(results: Sequence[Result]) -> str:
    """A row for each kind and family, then a line for each callable that had another outcome than
    it should have."""
    lines = [
        "| kind | family | callables | runs | passed | as expected |",
        "|---|---|---|---|---|---|",
    ]
    rows: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        rows[result.kind, result.family].append(result)
        rows[result.kind, "all"].append(result)
    for (kind, family), group in sorted(rows.items()):
        counts = (
            len({result.name for result in group}),
            len(group),
            sum(result.passed for result in group),
            sum(result.as_expected for result in group),
        )
        lines.append("| " + " | ".join(map(str, (kind, family, *counts))) + " |")
    for each in sorted(results, key=lambda result: result.key):
        if not each.as_expected:
            lines.append(f"- {each.name}, seed {each.seed}: {each.outcome} {each.reason}")
    return "\n".join(lines)


def read(path: Path | None) -> list[Result]:
    if path is None or not path.exists():
        return []
    return [Result(**entry) for entry in json.loads(path.read_text())["results"]]


def write(path: Path, results: Sequence[Result]) -> None:
    """Writes FILE as a whole: a reader never sees a part of it."""
    about = {
        "command": "python benchmarks/red_team_callables.py",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "evotune": evotune.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    lines = ",\n".join(json.dumps(asdict(each)) for each in sorted(results, key=lambda r: r.key))
    beside = path.with_suffix(".new")
    beside.write_text(f'{{"about": {json.dumps(about)},\n"results": [\n{lines}\n]}}\n')
    beside.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--kinds", nargs="+", default=[CHEAT, SLOW, RIGHT])
    parser.add_argument("--names", nargs="+", default=[])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path, help="print that file's table, run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(read(options.table)))
        return
    entries = [
        entry
        for entry in ENTRIES
        if entry.kind in options.kinds
        and (not options.names or entry.name in options.names)
        and is_installed(entry)
    ]
    results = read(options.output)
    deadline = time.monotonic() + 60 * options.minutes
    for result in run(entries, options.seeds, {result.key for result in results}):
        results.append(result)
        mark = "" if result.as_expected else "NOT AS EXPECTED "
        print(f"{result.name} {result.seed}: {mark}{result.outcome} {result.reason}", flush=True)
        if options.output:
            write(options.output, results)
        if time.monotonic() > deadline:
            print("The time was up: the same command goes on.", file=sys.stderr)
            break
    print(table(results))


if __name__ == "__main__":
    main()
