"""Measures how a change of kernel sources changes the times of configurations.

    python benchmarks/lab/compare_kernels.py CHANGED [--device cuda:0] [--only NAME ...]
        [--random 6]
        [--dtype float16|bfloat16] [-o benchmarks/results/FILE.json]
    python benchmarks/lab/compare_kernels.py --table benchmarks/results/FILE.json

CHANGED is another checkout. Only its kernels are used, and their results are not checked. For each
job of attention_cuda.py and attention_ragged.py, the champion that the H200's results have in
float16 and random configurations are compiled from both sources
and timed in turn: on the same buffers at 4 places, each side the mean over 8 graphs, up to 60
rounds. A ratio is the time of this checkout's sources over the time of the changed ones: below 1
the change is slower. "Same sources" is the ratio of the same code in other graphs: the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attention_cuda
import attention_ragged
import msgspec
from tuning import ROOT, derive

from evotune.backends.base.launch import CompileFailure, CompileJob, DeviceProfile, LaunchPlan
from evotune.backends.base.session import Sampler, Session
from evotune.problems import create_problem
from evotune.problems.problem import Problem
from evotune.runs.setup import load_kernel_setup
from evotune.timing.paired import TimingSettings, measure_paired, warm_sampler
from evotune.trial import Configuration
from evotune.verify.buffers import BufferSets
from evotune.verify.pool import InputPool
from evotune.workers.compile_worker import compiler_for
from evotune.workers.device_worker import open_session
from evotune.workers.executor import TIMED, CaseJob

RESULTS = tuple(
    ROOT / "benchmarks/results" / name
    for name in ("attention_h200.json", "attention_ragged_h200.json")
)
SEED = 7
PLACES = 4


@dataclass(frozen=True)
class Subject:
    """A configuration of a job, and its first timed case."""

    job: str
    profile: DeviceProfile
    configuration: Configuration
    problem: Problem
    timed: CaseJob


def space_of(name: str) -> tuple[str, dict[str, Any]]:
    """The space of a job, and its problem."""
    if name in attention_cuda.JOBS_BY_NAME:
        job = attention_cuda.JOBS_BY_NAME[name]
        return job.space, job.problem()
    ragged = next(each for each in attention_ragged.JOBS if each.name == name)
    variants = [{"causal": ragged.causal}]
    return ragged.space, {"shapes": [ragged.shape], "variants": variants, "held_out": []}


def subjects(
    name: str, champion: Mapping[str, Any], count: int, device: str, dtype: str
) -> Iterator[Subject]:
    space, problem_spec = space_of(name)
    with tempfile.TemporaryDirectory() as folder:
        changes = {"problem": {**problem_spec, "dtype": dtype}}
        setup = load_kernel_setup(derive(space, changes, Path(folder) / "space.yaml"), device)
    problem = create_problem(setup.problem_spec.name, setup.problem_spec.dtype)
    generator = random.Random(SEED)
    drawn = [setup.space.sample(generator) for _ in range(count)]
    own = setup.space.repair(champion, generator)  # older champions lack some parameters
    assert own is not None
    for configuration in (own, *drawn):
        cases = setup.planner.proposal(0, configuration).cases
        timed = next(case for case in cases if case.role == TIMED)
        yield Subject(name, setup.profile, configuration, problem, timed)


def build(job: CompileJob, path: Path) -> None:
    built = compiler_for(job.language).compile(job, path, 120.0)
    assert not isinstance(built, CompileFailure), built


def placed_sampler(
    session: Session, path: Path, plan: LaunchPlan, buffers: BufferSets, settings: TimingSettings
) -> Sampler:
    """A sampler of a built kernel's launches on each of the sets of buffers."""
    kernel = session.load(path, plan)
    places = range(len(buffers))
    launches = [session.bind(kernel, plan, buffers.pointers(place)) for place in places]
    return warm_sampler(session, launches, settings, graphs=settings.graphs)


def compare(session: Session, subject: Subject, now: Path, changed: Path) -> dict[str, Any]:
    plan = subject.timed.plan
    case = subject.timed.case
    pool = InputPool(subject.problem, session.torch_device)
    inputs = pool.get(case, "normal", SEED).inputs
    specs = subject.problem.tensors(case)
    buffers = BufferSets(specs, plan, [inputs] * PLACES, session.torch_device)
    settings = TimingSettings.thorough()
    reference, *others = (
        placed_sampler(session, path, plan, buffers, settings) for path in (now, now, changed)
    )
    same, other = (
        measure_paired(each, reference, case="", baseline_name="", settings=settings)
        for each in others
    )
    return {
        "job": subject.job,
        "configuration": dict(subject.configuration),
        "time_us": other.baseline_us,
        "same": [same.speedup, same.speedup_low, same.speedup_high],
        "changed": [other.speedup, other.speedup_low, other.speedup_high],
    }


def rows(chosen: Sequence[Subject], changed: Path) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            msgspec.structs.replace(subject.timed.compile, root=str(root))
            for subject in chosen
            for root in (ROOT, changed)
        ]
        paths = [Path(folder) / f"{number}.bin" for number in range(len(jobs))]
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            list(pool.map(build, jobs, paths))
        session = open_session(chosen[0].profile)
        for number, subject in enumerate(chosen):
            yield compare(session, subject, *paths[2 * number : 2 * number + 2])
            session.free()


def commit(folder: Path) -> str:
    words = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def table(data: Mapping[str, Any]) -> Iterator[str]:
    yield f"{data['device']}, {data['date']}"
    yield "| job | µs | same sources | changed |"
    yield "|---|---|---|---|"
    for row in data["rows"]:
        same, changed = (
            f"{ratio:.3f} [{low:.3f}, {high:.3f}]"
            for ratio, low, high in (row["same"], row["changed"])
        )
        yield f"| {row['job']} | {row['time_us']:.2f} | {same} | {changed} |"


def main() -> None:
    recorded = {
        job["name"]: job
        for path in RESULTS
        for job in json.loads(path.read_text())["jobs"]
        if job.get("dtype", "float16") == "float16"
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("changed", nargs="?", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", nargs="+", choices=recorded, default=list(recorded))
    parser.add_argument("--random", type=int, default=6)
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.table.read_text()))))
        return
    if options.changed is None:
        parser.error("CHANGED: the checkout to compare with")
    chosen = [
        subject
        for name in options.only
        for subject in subjects(
            name, recorded[name]["configuration"], options.random, options.device, options.dtype
        )
    ]
    data = {
        "command": ["python", "benchmarks/lab/compare_kernels.py", *sys.argv[1:]],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": chosen[0].profile.name,
        "commits": [commit(ROOT), commit(options.changed)],
        "compiler": compiler_for(chosen[0].timed.compile.language).version(),
        "rows": list(rows(chosen, options.changed.resolve())),
    }
    if options.output:
        options.output.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join(table(data)))


if __name__ == "__main__":
    main()
