"""Sends right CUDA kernels that compute in unusual ways through the gate, in many seeds.

    python -m tests.red_team.unusual_cuda -o FILE [--seeds 100] [--first-seed 0] [--minutes 5]
        [--methods a,b]

One process does all of it. The results, with each refusal, are written to FILE at the end.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.base.session import Session
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.problems import create_problem
from evotune.runs.setup import load_setup
from evotune.space.document import load_space
from evotune.trial import Configuration
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.executor import TIMED, CaseJob

from .pipeline import SPACES
from .timed import judge_timed

UNUSUAL = tuple(f"unusual_{name}_cuda.yaml" for name in ("rows", "warps", "splits", "tiles"))
_LAUNCHES = 16  # of a sample, at one place
_WATCHED_RUNS = 5


def values_of(space: str) -> tuple[str, list[str]]:
    """The space's one parameter, and its values."""
    (spec,) = load_space(SPACES / space).parameters
    return spec.name, [str(value) for value in spec.parameter.values]


METHODS = {method: space for space in UNUSUAL for method in values_of(space)[1]}


@dataclass(frozen=True, slots=True)
class Job:
    """The data that a compiler's process needs for one method."""

    method: str
    compile: CompileJob
    path: Path


def compile_job(job: Job) -> str:
    """Why it does not compile; "" when it does."""
    found = NvrtcCompiler().compile(job.compile, job.path, 60.0)
    return f"{job.method}: {found.reason}" if isinstance(found, CompileFailure) else ""


class CudaMethods:
    """All methods, compiled side by side and loaded by one process, with one input pool."""

    def __init__(self, folder: Path, device: str = "cuda:0") -> None:
        self._jobs: dict[str, list[tuple[CaseJob, Path]]] = {}
        compiles: dict[Path, Job] = {}
        for space in UNUSUAL:
            setup = load_setup(SPACES / space, device)
            assert setup.planner is not None
            profile = setup.profile
            gene, methods = values_of(space)
            for method in methods:
                cases = setup.planner.proposal(0, Configuration({gene: method})).cases
                paths = [folder / f"{method}-{case.compile.key[:8]}.cubin" for case in cases]
                self._jobs[method] = list(zip(cases, paths, strict=True))
                for case, path in self._jobs[method]:
                    compiles[path] = Job(method, case.compile, path)
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            failures = [words for words in pool.map(compile_job, compiles.values()) if words]
        assert not failures, failures
        # Imported only here: the modules that come with it need a GPU.
        from evotune.backends.cuda.cuda_session import CudaSession

        self._session: Session = CudaSession(profile)
        self._problem = create_problem("attention", "float16")
        session = self._session
        self._pool = InputPool(self._problem, session.torch_device, session.pool_bytes)
        self._gate = Gate(session, self._problem, self._pool, deterministic=True)
        self._subjects: dict[str, list[tuple[str, Subject]]] = {}

    def judge(self, method: str, seed: int, *, edges: bool) -> Verdict:
        """Sends the method through the gate. The timed shapes also go through the checks that
        follow the timing."""
        if method not in self._subjects:
            self._subjects[method] = [self._load(*each) for each in self._jobs[method]]
        verdict = Verdict()
        for role, subject in self._subjects[method]:
            if not verdict.passed or (role != TIMED and not edges):
                continue
            self._gate.examine(subject, self._problem.input_kinds, seed, verdict)
            if role == TIMED and verdict.passed:
                judge_timed(
                    self._session,
                    self._gate,
                    self._pool,
                    subject,
                    seed=seed,
                    verdict=verdict,
                    calls=_LAUNCHES,
                    watched_runs=_WATCHED_RUNS,
                )
        return verdict

    def _load(self, job: CaseJob, path: Path) -> tuple[str, Subject]:
        kernel = self._session.load(path, job.plan)
        return job.role, Subject(job.case, job.plan, kernel)


@dataclass(frozen=True, slots=True)
class Passage:
    method: str
    seed: int
    reason: str
    seconds: float


def passages(
    methods: CudaMethods, names: list[str], seeds: range, deadline: float
) -> Iterator[Passage]:
    """Goes seed by seed, so that all methods have had equally many when time is up."""
    for seed in seeds:
        for name in names:
            if time.monotonic() > deadline:
                return
            started = time.monotonic()
            verdict = methods.judge(name, seed, edges=True)
            yield Passage(name, seed, verdict.reason, time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0, help="where --seeds begin")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--methods", default=",".join(METHODS))
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    names = arguments.methods.split(",")
    seeds = range(arguments.first_seed, arguments.seeds)
    with tempfile.TemporaryDirectory() as folder:
        methods = CudaMethods(Path(folder), arguments.device)
        made = list(passages(methods, names, seeds, deadline))
    refused = [each for each in made if each.reason]
    summary = {
        "methods": len(names),
        "seeds": {name: sum(each.method == name for each in made) for name in names},
        "refused": [[each.method, each.seed, each.reason] for each in refused],
        "median_ms": round(1000 * statistics.median(each.seconds for each in made), 2),
        "seconds": round(sum(each.seconds for each in made), 1),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(summary, indent=1) + "\n")
    for each in refused:
        print(each.method, each.seed, each.reason)
    print(f"{len(refused)} refused of {len(made)}: {len(names)} methods")


if __name__ == "__main__":
    main()
