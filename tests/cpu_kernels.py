"""C++ kernels in this process: compiled, loaded and put through the gate, without a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems import create_problem
from evotune.runs.planning import Planner
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.executor import WHEN_THERE_IS_TIME, CaseJob
from tests.patience import PATIENCE_S


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch has one thread: its waiting threads would take the kernel's cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def loaded(session: CpuSession, job: CaseJob, folder: Path) -> Subject:
    """The job's kernel, which the folder keeps compiled for the job's other cases."""
    path = folder / f"{job.compile.key[:16]}.so"
    if not path.exists():
        built = CpuCompiler().compile(job.compile, path, PATIENCE_S)
        assert not isinstance(built, CompileFailure), built.log
    return Subject(job.case, job.plan, session.load(path, job.plan))


def judged(planner: Planner, folder: Path) -> Verdict:
    """The verdict on the default configuration, on the timed and the edge shapes."""
    problem = create_problem(planner.problem.name, planner.problem.dtype)
    session, verdict = CpuSession(), Verdict()
    gate = Gate(session, problem, InputPool(problem), deterministic=True)
    for job in planner.proposal(0, planner.bound.default()).cases:
        if job.role not in WHEN_THERE_IS_TIME:
            gate.examine(loaded(session, job, folder), problem.input_kinds, 0, verdict)
    return verdict
