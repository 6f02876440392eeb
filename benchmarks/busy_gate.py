"""Judges kernels beside other work: no right one may be refused, no cheat confirmed.

    python benchmarks/busy_gate.py --load 4 --judgements 1000 --pairs 8 --minutes 60
        -o benchmarks/results/busy_gate.json
    python benchmarks/busy_gate.py --load 16 --judging 13 --spinning 8 --pairs 8 --minutes 60
        -o FILE
    python benchmarks/busy_gate.py --load 16 --cheats --judgements 200 --pairs 8 -o FILE
    python benchmarks/busy_gate.py --table FILE

A machine of 16 cores has 8 pairs of cores. On each pair there are jobs, each with a pipeline of
compilers and a device worker, and processes that spin. `--load` says how many other processes are
busy on the two cores of a job: 16 of them give the machine a load of 16 on two cores; 0.5 is one
process that spins half of the time. By default a pair has one job, and `--load` processes spin
there. With `--judging` several jobs share two cores, and each is a part of the load of the others;
then `--spinning` says how many processes spin. A job also waits, and is no load then. So each
record says how many others were busy on average while it was judged (`beside`): a process that
spins all the time had a share s of a core, so 2 / s processes were busy, itself among them. A
judgement with fewer beside it than `--load` says counts for a lower load.

Right kernels are the C++ methods of tests/red_team (the spaces `unusual_cpu*` and the kernels
without a fault of the others), and the defaults and seeds of the shipped CPU spaces. Cheats are
those kernels whose time alone gives them away. A judgement is the search, and for `--confirmed` of
the draws also a champion's confirmation. Undecided is neither passed nor refused: such a cheat is
not caught, but it is not confirmed either. Results are appended to FILE; draws that it has are not
judged again, so a campaign can be made in parts. All jobs share what was compiled.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import queue
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import evotune
from evotune.runs import spaces as shipped

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from red_team.pipeline import CONFIRMATION, SEARCH, SPACES, Pipeline, choices
from spinning import CORES, Spun, pairs_of_cores, spinning

_LOADS = (0.5, 4.0, 16.0)
_TOGETHER = (
    4  # at most so many draws of a space go to a job at once: it opens one pipeline for them
)
_IN_PROCESS = ("features", "paged", "varlen")
_RIGHT = ("right", "none", "last_row_first", "copies_rows_first")
_SHIPPED = (
    *("attention-cpu", "attention-cpu-bf16", "attention-scalar-cpu"),
    *("softmax-cpu", "rms-norm-cpu", "matmul-cpu"),
)
_CHEATS = {
    "cheats_cpu.yaml": ("memoises_all_inputs", "memoises_when_hurried"),
    "cheats_cpu_parts.yaml": ("keeps_each_head", "keeps_every_other_head"),
    "cheats_cpu_softmax_parts.yaml": ("keeps_each_row", "keeps_half_of_the_rows"),
    "cheats_cpu_softmax.yaml": ("keeps_all_at_the_pace_of_timing",),
    "cheats_cpu_histogram.yaml": ("keeps_the_last_input",),
    "cheats_cpu_phases.yaml": ("keeps_results_until_the_timing_is_over",),
    "cheats_cpu_patience.yaml": (
        "keeps_keys_with_patience",
        "keeps_weights_with_patience",
        "memo_of_8_input_sets",
    ),
}
PASSED, REFUSED, UNDECIDED = "passed", "refused", "undecided"


@dataclass(frozen=True)
class Kernel:
    """A kernel of a red-team space by name, or `index` of the starts of a shipped space."""

    space: str
    name: str
    index: int = -1


@dataclass(frozen=True)
class Judgement:
    """One kernel at one load. `stage` is the last one; `verdict` is that stage's. `beside`: other
    processes that were busy on the two cores, on average; None where no process spun all the time,
    and of a time when all the load spun. `threads`: of the kernel and of its baseline."""

    load: float
    cheat: bool
    space: str
    kernel: str
    draw: int
    stage: str
    verdict: str
    outcome: str
    reason: str
    seconds: float
    host_load: float
    beside: float | None = None
    threads: int = 2

    @property
    def reached(self) -> float:
        """The load for which this judgement counts: a lower one where too few others were busy."""
        if self.beside is None or self.beside >= self.load:
            return self.load
        return max((each for each in _LOADS if each <= self.beside), default=0.0)


def right_kernels() -> list[Kernel]:
    found = []
    for path in sorted(SPACES.glob("*_cpu*.yaml")):
        if path.stem.endswith(_IN_PROCESS):
            continue
        unusual = path.name.startswith("unusual")
        names = choices(path.name)[1]
        found += [Kernel(path.name, name) for name in names if unusual or name in _RIGHT]
    return found


def shipped_kernels() -> list[Kernel]:
    from evotune.runs.setup import load_setup

    found = []
    for space in _SHIPPED:
        starts = load_setup(shipped.find_space(space), "cpu").space.starts()
        found += [Kernel(space, f"start {n}", n) for n in range(len(starts))]
    return found


def cheats() -> list[Kernel]:
    return [Kernel(space, name) for space, names in _CHEATS.items() for name in names]


# --- A job: judges kernels on two cores until the queue is empty or the time is over --------------


def job(
    name: str,
    kernels: Any,
    results: Any,
    *,
    cores: Sequence[int],
    spinners: Sequence[int],
    cache: Path,
    threads: int,
    load: float,
    deadline: float,
    confirmed: float,
    cheating: bool,
) -> None:
    os.sched_setaffinity(0, cores)
    rng = random.Random(f"{load} {name}")
    # A pipeline keeps a worker that spins for nobody: a job has one at a time.
    with tempfile.TemporaryDirectory() as folder:
        pipeline, opened = None, ""
        try:
            while time.time() < deadline:
                try:
                    together = kernels.get(timeout=0.5)
                except queue.Empty:
                    break
                for draw, kernel in together:
                    before, began = Spun.so_far(spinners), time.monotonic()
                    if opened != kernel.space:
                        if pipeline is not None:
                            pipeline.close()
                        pipeline = open_pipeline(Path(folder), kernel, cache, threads)
                        opened = kernel.space
                    assert pipeline is not None
                    stage, outcome = judge(pipeline, kernel, draw, rng.random() < confirmed)
                    verdict = PASSED if outcome.ok else UNDECIDED if outcome.undecided else REFUSED
                    results.put(
                        Judgement(
                            load,
                            cheating,
                            kernel.space,
                            kernel.name,
                            draw,
                            stage,
                            verdict,
                            outcome.kind.value,
                            outcome.reason,
                            round(time.monotonic() - began, 1),
                            round(os.getloadavg()[0], 1),
                            before.beside(Spun.so_far(spinners)),
                            threads,
                        )
                    )
        finally:
            if pipeline is not None:
                pipeline.close()
    results.put(None)


def open_pipeline(folder: Path, kernel: Kernel, cache: Path, threads: int) -> Pipeline:
    place = folder / kernel.space.replace("/", "_")
    space = kernel.space if kernel.index < 0 else str(shipped.find_space(kernel.space))
    return Pipeline(place, space, device=f"cpu:{threads}", cache=cache)


def judge(pipeline: Pipeline, kernel: Kernel, draw: int, confirm: bool) -> tuple[str, Any]:
    if kernel.index >= 0:
        found = pipeline.judge_start(kernel.index, number=draw, confirm=confirm)
    elif confirm:
        found = pipeline.judge(kernel.name, kernel.space, number=draw)
    else:
        found = SEARCH, pipeline.run(kernel.name, kernel.space, number=draw)
    return found


# --- The campaign ---------------------------------------------------------------------------------


def drawn(kernels: Sequence[Kernel], count: int, seed: int) -> list[tuple[int, Kernel]]:
    """`count` draws: each kernel once before any is drawn again. The draws of a kernel follow each
    other, and the kernels of a space: a job then opens few pipelines and compiles a kernel once."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        found += rng.sample(list(kernels), min(len(kernels), count - len(found)))
    numbered = list(enumerate(found))
    spaces = sorted({kernel.space for kernel in kernels})
    rng.shuffle(spaces)
    return sorted(numbered, key=lambda item: (spaces.index(item[1].space), item[1].name, item[0]))


def together(draws: Sequence[tuple[int, Kernel]]) -> Iterator[list[tuple[int, Kernel]]]:
    """Draws of the same space that follow each other, a few at a time."""
    part: list[tuple[int, Kernel]] = []
    for draw, kernel in draws:
        if part and (kernel.space != part[0][1].space or len(part) == _TOGETHER):
            yield part
            part = []
        part.append((draw, kernel))
    if part:
        yield part


def campaign(options: argparse.Namespace, known: Sequence[Judgement]) -> Iterator[Judgement]:
    """Judges what is not `known`."""
    done = {(each.space, each.kernel, each.draw) for each in known if each.reached >= options.load}
    kernels = cheats() if options.cheats else [*right_kernels(), *shipped_kernels()]
    if options.kernels:
        kernels = [each for each in kernels if each.name in options.kernels]
    pairs = pairs_of_cores(options.pairs)
    context = multiprocessing.get_context("spawn")
    waiting, results = context.Queue(), context.Queue()
    draws = drawn(kernels, options.judgements, options.seed)
    for part in together([(n, k) for n, k in draws if (k.space, k.name, n) not in done]):
        waiting.put(part)
    deadline = time.time() + 60 * options.minutes
    spinners = options.load if options.spinning is None else options.spinning
    with tempfile.TemporaryDirectory() as cache, spinning(spinners, pairs) as spun:
        workers = [
            context.Process(
                target=job,
                args=(f"{pair} {number}", waiting, results),
                kwargs={
                    "cores": pairs[pair],
                    "spinners": spun[pair],
                    "cache": Path(cache),
                    "threads": options.threads,
                    "load": options.load,
                    "deadline": deadline,
                    "confirmed": options.confirmed,
                    "cheating": options.cheats,
                },
            )
            for number in range(options.judging)
            for pair in range(len(pairs))
        ]
        for worker in workers:
            worker.start()
        open_jobs = len(workers)
        while open_jobs and time.time() < deadline:
            try:
                found = results.get(timeout=1.0)
            except queue.Empty:
                open_jobs = min(open_jobs, sum(worker.is_alive() for worker in workers))
                continue
            if found is None:
                open_jobs -= 1
            else:
                yield found
        waiting.cancel_join_thread()
        for worker in workers:
            worker.terminate()  # its own children end with it
            worker.join()


def table(results: Sequence[Judgement]) -> str:
    lines = [
        "| load | kernels | judged | confirmed too | passed | refused | undecided |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[bool, float], list[Judgement]] = defaultdict(list)
    for each in results:
        groups[each.cheat, each.reached].append(each)
    for (cheat, load), group in sorted(groups.items()):
        counts = Counter(each.verdict for each in group)
        confirmed = [each for each in group if each.stage == CONFIRMATION]
        row = (f"{load:g}", "cheats" if cheat else "right", len(group), len(confirmed))
        shares = [f"{counts[v]} ({counts[v] / len(group):.1%})" for v in (REFUSED, UNDECIDED)]
        lines.append("| " + " | ".join(map(str, (*row, counts[PASSED], *shares))) + " |")
    for each in results:
        bad = each.verdict == (PASSED if each.cheat else REFUSED)
        if bad and (each.stage == CONFIRMATION or not each.cheat):
            lines.append(
                f"- load {each.reached:g} {each.space} {each.kernel} ({each.stage}): "
                f"{each.outcome} {each.reason}"
            )
    return "\n".join(lines)


def read(path: Path | None) -> list[Judgement]:
    if path is None or not path.exists():
        return []
    return [Judgement(**entry) for entry in json.loads(path.read_text())["results"]]


def write(path: Path, results: Sequence[Judgement]) -> None:
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "evotune": evotune.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
    lines = ",\n".join(json.dumps(asdict(each)) for each in results)
    beside = path.with_suffix(".new")
    beside.write_text(f'{{"about": {json.dumps(about)},\n"results": [\n{lines}\n]}}\n')
    beside.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", type=float, default=4.0, help="busy processes beside each job")
    parser.add_argument("--judgements", type=int, default=100)
    parser.add_argument("--confirmed", type=float, default=0.1, help="share that is confirmed too")
    parser.add_argument("--pairs", type=int, default=1, help="of cores")
    parser.add_argument("--judging", type=int, default=1, help="jobs on two cores")
    parser.add_argument("--spinning", type=float, help="of the load; by default all of it")
    parser.add_argument(
        "--threads",
        type=int,
        default=CORES,
        help="of a kernel; a run on busy cores would choose 1 (default: %(default)s)",
    )
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--cheats", action="store_true", help="judge the cheats; --confirmed 1 then"
    )
    parser.add_argument("--kernels", nargs="+", default=[], help="only those of these names")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path, help="print that file's table, run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(read(options.table)))
        return
    if options.cheats:
        options.confirmed = 1.0
    results, now = read(options.output), []
    for each in campaign(options, results):
        now.append(each)
        print(
            f"{len(now)} {each.space} {each.kernel} {each.stage}: {each.verdict} {each.reason} "
            f"({each.seconds:g} s)",
            flush=True,
        )
        if options.output:
            write(options.output, [*results, *now])
    print(table([*results, *now]))


if __name__ == "__main__":
    main()
