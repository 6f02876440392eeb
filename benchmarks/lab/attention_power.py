"""Times recorded attention champions on a cool GPU and at its power limit, in one process.

    python benchmarks/lab/attention_power.py benchmarks/results/attention_h200.json
        [--only CASE ...]
        [--libraries fa4 ...] [--views FILE] [--device cuda:0] -o benchmarks/results/FILE.json
    python benchmarks/lab/attention_power.py --table benchmarks/results/FILE.json

For each shape and mask of the given results, the fastest champion is timed in turn with

- SDPA: the backend that was the fastest when the champion was recorded,
- each of the libraries that computes the case, and
- itself on tensors of (batch, length, heads, head_dim) memory ("blhd"), or there the champion of
  --views, results of `attention_cuda.py --layout blhd`, where these have the row.

Each pair is timed twice. Cool: before each sample the GPU rests, longer and longer until it stays
below its power limit. Hot: before each sample it multiplies matrices, after two seconds of the
same. Each sample follows an untimed run of the same calls. All sides are held to the gate's limits
first, on one set of inputs; the search and `--confirm` of attention_cuda.py have the whole gate.
FILE is written after each row, and a second call with the same FILE measures the rows that it
lacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attention_cuda
import torch
from compare_kernels import build
from tuning import derive

from evotune.backends.base.launch import CompileJob, DeviceProfile
from evotune.backends.base.session import Sampler, Session
from evotune.problems import create_problem
from evotune.problems.libraries import LIBRARIES, UnusableBaseline
from evotune.problems.problem import Problem
from evotune.runs.setup import load_kernel_setup
from evotune.timing.paired import TimingSettings, measure_paired
from evotune.trial import Configuration, Json, Measurement
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.device_worker import open_session
from evotune.workers.executor import TIMED, CaseJob
from evotune.workers.trial_timer import BaselineSamplers, CaseTimer, Placed

SEED = 7
LAYOUT = "blhd"
ROUNDS = 20
FIRST_REST_S, MOST_REST_S = 0.03, 0.5
HEAT_S = 2.0
LARGE_FLOPS = 5e10
"""The ten large rows of docs/results.md have 137 GFLOP or more, the others 17 or fewer."""
FAULTS = (UnusableBaseline, AssertionError, ImportError, RuntimeError, TypeError, ValueError)
"""A rival that raises one of these is left out of its row, and the record has the reason."""
Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A champion on one case, and the same one or another, `of_views`, in the other layout where it
    takes that."""

    case: str
    configuration: Configuration
    of_views: Configuration
    baseline: str
    problem: Problem
    profile: DeviceProfile
    jobs: tuple[CaseJob, ...]


def row_of(
    space: str,
    problem: Mapping[str, Any],
    champion: Mapping[str, Any],
    *,
    baseline: str,
    device: str,
    of_views: Mapping[str, Any] | None = None,
    compile_only: bool = False,
) -> Row:
    """The row of a champion of `space`, on the first shape and variant of `problem`."""
    jobs: list[CaseJob] = []
    configurations: list[Configuration] = []
    for layout, given in (({}, champion), ({"layout": LAYOUT}, of_views or champion)):
        variant = {**problem["variants"][0], **layout}
        spec = {**problem, "variants": [variant], "held_out": []}
        with tempfile.TemporaryDirectory() as folder:
            path = derive(space, {"problem": spec}, Path(folder) / "space.yaml")
            setup = load_kernel_setup(path, device, compile_only=compile_only)
        defaults = setup.space.default()
        values = {name: given.get(name, defaults[name]) for name in defaults}
        configurations.append(Configuration(values))
        proposal = setup.planner.proposal(0, configurations[-1])
        if proposal.rejection and not layout:
            raise ValueError(f"{space}: {proposal.rejection}")
        jobs += [case for case in proposal.cases if case.role == TIMED]
    named = create_problem(setup.problem_spec.name, setup.problem_spec.dtype)
    return Row(jobs[0].case.label, *configurations, baseline, named, setup.profile, tuple(jobs))


def rows_of(records: dict[str, Record], views: dict[str, Record], device: str) -> Iterator[Row]:
    for job, causal, warm in attention_cuda.fastest(records):
        of_views = views.get(job.name, {})
        yield row_of(
            job.space,
            {**job.problem(), "variants": [{"causal": causal}]},
            records[job.name]["configuration"],
            baseline=warm["baseline"],
            device=device,
            of_views=of_views["configuration"] if of_views.get("layout") == LAYOUT else None,
        )


def build_all(rows: Sequence[Row], folder: Path) -> dict[str, Path]:
    """Compiles all code of the rows; the files by the key of their job."""
    jobs: dict[str, CompileJob] = {
        each.compile.key: each.compile for row in rows for each in row.jobs
    }
    paths = {key: folder / f"{number}.bin" for number, key in enumerate(jobs)}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(build, jobs.values(), paths.values()))
    return paths


class Prepared:
    """A sampler that prepares the device before each sample, then runs its calls once untimed."""

    def __init__(self, sampler: Sampler, prepare: Callable[[], object]) -> None:
        self._sampler = sampler
        self._prepare = prepare

    def run(self) -> None:
        self._sampler.run()

    def time_us(self) -> float:
        self._prepare()
        self._sampler.run()
        return self._sampler.time_us()


class Heater:
    """Products of large matrices, some 5 ms of an H200 at a time."""

    def __init__(self) -> None:
        self._matrix = torch.randn(8192, 8192, device="cuda").half()

    def __call__(self) -> None:
        for _ in range(3):
            self._matrix @ self._matrix
        torch.cuda.synchronize()


class Bench:
    """One session that times rows."""

    def __init__(self, session: Session, problem: Problem, heat: Callable[[], None]) -> None:
        self._session = session
        self._problem = problem
        self._heat = heat
        self._pool = InputPool(problem, session.torch_device, session.pool_bytes)
        self._gate = Gate(session, problem, self._pool, deterministic=True)
        sample_us = session.champion_sample_us
        self._settings = dataclasses.replace(
            TimingSettings.thorough(),
            sample_us=sample_us,
            min_rounds=ROUNDS,
            max_rounds=ROUNDS,
            max_seconds=math.inf,
        )

    def measure(self, row: Row, paths: Mapping[str, Path], libraries: Sequence[str]) -> Record:
        record: Record = {
            "case": row.case,
            "flops": row.jobs[0].flops,
            "configuration": dict(row.configuration),
            "of_views": dict(row.of_views),
            "pairs": [],
            "left_out": {},
        }
        placed = [self._placed(job, paths) for job in row.jobs]  # has the memory that launches use
        champion, *others = [each.sampler for each in placed]
        rivals: dict[str, Callable[[], Sampler]] = {
            name: functools.partial(self._baseline, row, name)
            for name in (row.baseline, *libraries)
        }
        if others:
            rivals[LAYOUT] = lambda: others[0]
        else:
            record["left_out"][LAYOUT] = "the champion does not take it"
        for name, make in rivals.items():
            try:
                rival = make()
            except FAULTS as reason:
                record["left_out"][name] = f"{type(reason).__name__}: {reason}"
                continue
            record["pairs"] += [self._hot(champion, rival, name), self._cool(champion, rival, name)]
        self._session.free()
        return record

    def _placed(self, job: CaseJob, paths: Mapping[str, Path]) -> Placed:
        kernel = self._session.load(paths[job.compile.key], job.plan)
        subject = Subject(job.case, job.plan, kernel)
        verdict = Verdict()
        self._gate.examine(subject, ["normal"], SEED, verdict)
        if not verdict.passed:
            raise ValueError(f"{job.case.label}: {verdict.reason}")
        baselines = BaselineSamplers(self._session, self._problem, self._pool)
        timer = CaseTimer(self._session, self._problem, self._pool, baselines, SEED, watching=False)
        return timer.place(self._gate, subject, self._settings)

    def _baseline(self, row: Row, name: str) -> Sampler:
        case = row.jobs[0].case
        inputs = self._pool.get(case, "normal", SEED)
        calls = self._problem.baselines(case, dict(inputs.inputs), name)
        if name not in calls:
            raise UnusableBaseline(f"{name}: it does not compute {case.label}")
        for out, value in calls[name]().items():
            if not LIMITS.hold(errors_against(value, inputs.expected[out])):
                raise UnusableBaseline(f"{name}: its results are not within the limits")
        made = BaselineSamplers(self._session, self._problem, self._pool)
        return made.get(case, name, SEED, self._settings)

    def _hot(self, champion: Sampler, rival: Sampler, name: str) -> Record:
        ends_s = time.monotonic() + HEAT_S
        while time.monotonic() < ends_s:
            self._heat()
        return pair(name, "hot", self._time(champion, rival, self._heat), 0.0)

    def _cool(self, champion: Sampler, rival: Sampler, name: str) -> Record:
        rest_s = FIRST_REST_S
        time.sleep(HEAT_S / 2)
        while True:
            found = self._time(champion, rival, functools.partial(time.sleep, rest_s))
            capped = "sw_power_cap" in found.state.get("throttled_by", ())
            if not capped or 3 * rest_s > MOST_REST_S:
                return pair(name, "cool", found, rest_s)
            rest_s *= 3

    def _time(
        self, champion: Sampler, rival: Sampler, prepare: Callable[[], object]
    ) -> Measurement:
        def state() -> Mapping[str, Json]:
            champion.run()  # an idle GPU lowers its clock
            return self._session.state()

        return measure_paired(
            Prepared(champion, prepare),
            Prepared(rival, prepare),
            case="",
            baseline_name="",
            settings=self._settings,
            state=state,
        )


def pair(against: str, manner: str, found: Measurement, rest_s: float) -> Record:
    """`ratio` is the rival's time over the champion's."""
    return {
        "against": against,
        "manner": manner,
        "rest_ms": 1000 * rest_s,
        "time_us": found.time_us,
        "against_us": found.baseline_us,
        "ratio": found.speedup,
        "low": found.speedup_low,
        "high": found.speedup_high,
        "throttled": found.throttled,
        "state": dict(found.state),
    }


def table(data: Mapping[str, Any]) -> Iterator[str]:
    yield f"{data['device']}, {data['date']}"
    yield "| case | against | hot: µs, ratio [95%], MHz, W | cool: µs, ratio [95%], MHz, W |"
    yield "|---|---|---|---|"
    ratios: dict[str, list[float]] = {}
    for row in data["rows"]:
        pairs = {(each["against"], each["manner"]): each for each in row["pairs"]}
        for name in dict.fromkeys(each["against"] for each in row["pairs"]):
            kind = "sdpa" if name.startswith("sdpa") else name
            shown = []
            for manner in ("hot", "cool"):
                each = pairs[name, manner]
                shown.append(cell(each))
                ratios.setdefault(f"{kind}, {manner}", []).append(each["ratio"])
                if row["flops"] > LARGE_FLOPS:
                    ratios.setdefault(f"{kind}, {manner}, large", []).append(each["ratio"])
            yield f"| {row['case']} | {name} | {' | '.join(shown)} |"
    yield ""
    for rows, found in ratios.items():
        mean = statistics.geometric_mean(found)
        yield (
            f"{rows}: {mean:.3f} in the geometric mean of {len(found)} rows, "
            f"{min(found):.3f} to {max(found):.3f}"
        )


def cell(found: Record) -> str:
    state = found["state"]
    capped = ", power limit" if "sw_power_cap" in state.get("throttled_by", ()) else ""
    at = f"{state.get('sm_mhz', 0)} MHz, {state.get('power_w', 0):.0f} W{capped}"
    interval = f"[{found['low']:.3f}, {found['high']:.3f}]"
    return f"{found['time_us']:.2f}, {found['ratio']:.3f} {interval}, {at}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--only", nargs="+", metavar="CASE")
    parser.add_argument("--libraries", nargs="*", choices=LIBRARIES, default=["fa4"])
    parser.add_argument("--views", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.table.read_text()))))
        return
    if options.results is None:
        parser.error("RESULTS: the file of attention_cuda.py that has the champions")
    views = attention_cuda.load(options.views)
    rows = list(rows_of(attention_cuda.load(options.results), views, options.device))
    unknown = set(options.only or ()) - {row.case for row in rows}
    if unknown:
        parser.error(f"{unknown}; the cases are {', '.join(row.case for row in rows)}")
    data: Record = {
        "command": f"python benchmarks/lab/attention_power.py {' '.join(sys.argv[1:])}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": rows[0].profile.name,
        "torch": metadata.version("torch"),
        "rows": [],
    }
    if options.output and options.output.exists():
        data |= json.loads(options.output.read_text())
    done = {row["case"] for row in data["rows"]}
    wanted = [
        row for row in rows if row.case not in done and row.case in (options.only or (row.case,))
    ]
    with tempfile.TemporaryDirectory() as folder:
        paths = build_all(wanted, Path(folder))
        bench = Bench(open_session(rows[0].profile), rows[0].problem, Heater())
        for row in wanted:
            data["rows"].append(bench.measure(row, paths, options.libraries))
            print(json.dumps(data["rows"][-1]["pairs"]), flush=True)
            if options.output:
                options.output.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join(table(data)))


if __name__ == "__main__":
    main()
