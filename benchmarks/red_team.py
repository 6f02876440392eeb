"""Runs the red team's kernels with many seeds: every bad one must be caught, no honest one may be.

    python benchmarks/red_team.py [--device cpu] [--seeds 20] [--minutes M]
        [--spaces NAME ...] [--behaviours NAME ...] [--without CHECK ...]
        -o benchmarks/results/red_team_cpu.json
    python benchmarks/red_team.py --honest [--seeds 100] -o FILE
    python benchmarks/red_team.py --third [--device cuda:0] [--seeds 10] [--minutes M] -o FILE
    python benchmarks/red_team.py --table benchmarks/results/red_team_cpu.json [--by-kernel]

Each kernel of tests/red_team goes through the search and, if it passes there, through the
confirmation of a champion. Honest kernels are confirmed with the first seeds only (`--confirmed`).
On a CPU each seed has a worker of its own, and the seed is the number of its proposals; on a GPU
each space has one worker, and its kernels are compiled side by side. `--third` takes the kernels
that are wrong for sizes and numbers that nobody drew. Results that are in
FILE already are not measured again, so a campaign can be run in parts: `--minutes` ends a part.
`--without` leaves checks out of the gate: the kernels that then pass are caught by these checks
alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

import evotune

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from red_team.cuda_pipeline import CHAMPION, CudaPipeline
from red_team.pipeline import CONFIRMATION, SEARCH, SPACES, Pipeline, choices, problem_of

PASSED = ""
RIGHT = frozenset(("right", "none", "last_row_first", "copies_rows_first"))
IN_PROCESS = ("features", "paged", "varlen")
"""Spaces whose kernels the tests judge without a pipeline."""


@dataclass(frozen=True)
class Result:
    """The result of one kernel with one seed. `caught` is the stage that caught it; "" when it
    passed both stages."""

    space: str
    behaviour: str
    seed: int
    without: str
    caught: str
    outcome: str
    reason: str
    seconds: float

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.space, self.behaviour, self.seed, self.without

    @property
    def bad(self) -> bool:
        """Whether the kernel is a bad one, which must be caught."""
        return not (self.space.startswith("unusual") or self.behaviour in RIGHT)


@dataclass(frozen=True)
class Campaign:
    """The kernels to judge, the number of seeds, and the device."""

    device: str
    spaces: Sequence[str]
    behaviours: frozenset[str]
    seeds: int
    confirmed: int
    without: frozenset[str]

    def kernels(self, space: str) -> list[str]:
        return [
            name
            for name in choices(space, self.device)[1]
            if not self.behaviours or name in self.behaviours
        ]

    def groups(self) -> list[tuple[str, ...]]:
        """The spaces by problem: those of the same problem share a worker."""
        found: dict[str, list[str]] = defaultdict(list)
        for space in self.spaces:
            found[problem_of(space, self.device)].append(space)
        return [tuple(group) for group in found.values()]


def spaces_of(device: str, kind: str) -> list[str]:
    """The spaces of a kind for this backend: `cheats`, `unusual` or `third`."""
    pattern = f"{kind}_cpu*.yaml" if device == "cpu" else f"{kind}_*cuda.yaml"
    found = (path.name for path in SPACES.glob(pattern))
    return sorted(name for name in found if not name.removesuffix(".yaml").endswith(IN_PROCESS))


def run(campaign: Campaign, known: set[tuple[str, str, int, str]]) -> Iterator[tuple[str, Result]]:
    """Yields the device's name and the result of each kernel and seed that is not known yet."""
    return (run_on_cpu if campaign.device == "cpu" else run_on_gpu)(campaign, known)


def run_on_gpu(
    campaign: Campaign, known: set[tuple[str, str, int, str]]
) -> Iterator[tuple[str, Result]]:
    without = ",".join(sorted(campaign.without))
    for space in campaign.spaces:
        missing = {
            seed: [
                name
                for name in campaign.kernels(space)
                if (space, name, seed, without) not in known
            ]
            for seed in range(campaign.seeds)
        }
        if not any(missing.values()):
            continue
        with tempfile.TemporaryDirectory() as folder:
            pipeline = CudaPipeline(
                Path(folder), space, device=campaign.device, without=campaign.without
            )
            try:
                for seed, names in missing.items():
                    confirm = seed < campaign.confirmed
                    for found in pipeline.judge(names, seed, confirm=confirm):
                        caught = {CHAMPION: CONFIRMATION}.get(found.stage, found.stage)
                        kind, reason = found.outcome.kind.value, found.outcome.reason
                        seconds = round(found.seconds, 2)
                        about = (caught, kind, reason, seconds)
                        result = Result(space, found.behaviour, seed, without, *about)
                        yield pipeline.device, result
            finally:
                pipeline.close()


def run_on_cpu(
    campaign: Campaign, known: set[tuple[str, str, int, str]]
) -> Iterator[tuple[str, Result]]:
    kernels = {space: campaign.kernels(space) for space in campaign.spaces}
    without = ",".join(sorted(campaign.without))
    groups = campaign.groups()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(campaign.seeds):
            for number, group in enumerate(groups):
                open_ones = [
                    (space, name)
                    for space in group
                    for name in kernels[space]
                    if (space, name, seed, without) not in known
                ]
                if not open_ones:
                    continue
                pipeline = Pipeline(
                    Path(folder) / str(number),
                    *group,
                    device=campaign.device,
                    without=campaign.without,
                )
                try:
                    for space, name in open_ones:
                        found = judge(pipeline, space, name, seed, seed < campaign.confirmed)
                        yield pipeline.device, Result(space, name, seed, without, *found)
                finally:
                    pipeline.close()


def judge(
    pipeline: Pipeline, space: str, name: str, seed: int, confirm: bool
) -> tuple[str, str, str, float]:
    """The stage that caught the kernel, the outcome, its reason, and the seconds it took."""
    started = time.monotonic()
    if confirm:
        stage, outcome = pipeline.judge(name, space, number=seed)
    else:
        stage, outcome = SEARCH, pipeline.run(name, space, number=seed)
    caught = PASSED if outcome.ok else stage
    return caught, outcome.kind.value, outcome.reason, round(time.monotonic() - started, 2)


def table(results: Sequence[Result]) -> str:
    """A row for each space, then a line for each bad kernel that passed and each honest kernel that
    was refused."""
    lines = [
        "| space | kernels | runs | caught in the search | as champions | passed |",
        "|---|---|---|---|---|---|",
    ]
    by_space: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_space[result.space + (f" without {result.without}" * bool(result.without))].append(
            result
        )
    for space, group in sorted(by_space.items()):
        bad = [result for result in group if result.bad] or group
        counts = Counter(result.caught for result in bad)
        kernels = len({result.behaviour for result in bad})
        row = (space, kernels, len(bad), counts[SEARCH], counts[CONFIRMATION], counts[PASSED])
        lines.append("| " + " | ".join(map(str, row)) + " |")
    wrong: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        if result.bad == (result.caught == PASSED):
            wrong[result.space, result.behaviour, result.without].append(result)
    seeds = Counter((r.space, r.behaviour, r.without) for r in results)
    for key, group in sorted(wrong.items()):
        what = "passed" if group[0].bad else f"refused: {group[0].reason}"
        lines.append(f"- {key[0]} {key[1]}: {len(group)} of {seeds[key]} seeds {what}")
    return "\n".join(lines)


def table_by_kernel(results: Sequence[Result]) -> str:
    """A row for each kernel: how many seeds caught it in the search, and as a champion."""
    lines = ["| space | kernel | seeds | search | champion | passed |", "|---|---|---|---|---|---|"]
    by_kernel: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        space = result.space.removesuffix(".yaml")
        by_kernel[space, result.behaviour, result.without][result.caught] += 1
    for (space, kernel, without), counts in sorted(by_kernel.items()):
        name = kernel + f" without {without}" * bool(without)
        row = (counts.total(), counts[SEARCH], counts[CONFIRMATION], counts[PASSED])
        lines.append("| " + " | ".join(map(str, (space, name, *row))) + " |")
    return "\n".join(lines)


def read(path: Path | None) -> list[Result]:
    if path is None or not path.exists():
        return []
    return [Result(**entry) for entry in json.loads(path.read_text())["results"]]


def write(path: Path, results: Sequence[Result], about: Mapping[str, str]) -> None:
    """Writes FILE as a whole: a reader never sees a part of it."""
    ordered = sorted(results, key=lambda result: result.key)
    lines = ",\n".join(json.dumps(asdict(result)) for result in ordered)
    text = f'{{"about": {json.dumps(about)},\n"results": [\n{lines}\n]}}\n'
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def print_tables(results: Sequence[Result], *, by_kernel: bool) -> None:
    print(table(results))
    if by_kernel:
        print()
        print(table_by_kernel(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, help="by default 20; 100 honest, 10 third")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--honest", action="store_true", help="the unusual kernels")
    which.add_argument("--third", action="store_true", help="those wrong where nobody looked")
    parser.add_argument("--confirmed", type=int, help="seeds that are confirmed too: all, honest 2")
    parser.add_argument("--spaces", nargs="+", default=[], help="all of tests/red_team if not told")
    parser.add_argument("--behaviours", nargs="+", default=[])
    parser.add_argument("--without", nargs="+", default=[], metavar="CHECK")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path, help="print that file's table, run nothing")
    parser.add_argument("--by-kernel", action="store_true", help="a row for each kernel as well")
    options = parser.parse_args()
    if options.table:
        print_tables(read(options.table), by_kernel=options.by_kernel)
        return
    kind = "unusual" if options.honest else "third" if options.third else "cheats"
    seeds = options.seeds or {"unusual": 100, "third": 10, "cheats": 20}[kind]
    campaign = Campaign(
        device=options.device,
        spaces=options.spaces or spaces_of(options.device, kind),
        behaviours=frozenset(options.behaviours),
        seeds=seeds,
        confirmed=(2 if options.honest else seeds)
        if options.confirmed is None
        else options.confirmed,
        without=frozenset(options.without),
    )
    results = read(options.output)
    deadline = time.monotonic() + 60 * options.minutes
    finished = True
    for device, result in run(campaign, {result.key for result in results}):
        results.append(result)
        caught = result.caught or "passed"
        print(
            f"{result.space} {result.behaviour} {result.seed}: {caught} {result.reason}", flush=True
        )
        if options.output:
            about = {
                "command": f"python benchmarks/red_team.py --device {options.device}"
                + " --third" * options.third,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "device": device,
                "evotune": evotune.__version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
            }
            write(options.output, results, about)
        if time.monotonic() > deadline:
            finished = False
            break
    print_tables(results, by_kernel=options.by_kernel)
    if not finished:
        print("The time was up: the same command goes on.", file=sys.stderr)


if __name__ == "__main__":
    main()
