"""Right kernels that compute in unusual ways: the gate refuses none of them, whatever the inputs.

Every method of data/kernels/unusual.cpp is held to the gate on a timed shape and on edge shapes,
on all input kinds, and to what follows the timing. `make test` spreads 100 seeds over the methods;
`make soak` takes 100 for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from evotune.device.cpu import CpuCompiler, CpuSession
from evotune.device.launch import CompileFailure
from evotune.device.protocol import Session
from evotune.engine.planning import Planner
from evotune.engine.setup import load_setup
from evotune.execute.protocol import TIMED, CaseJob
from evotune.problems import create_problem
from evotune.space.specs import ParameterSpec
from evotune.trial import Configuration
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

from .pipeline import SPACES

SEEDS = 100
PROBLEM = create_problem("attention", "float32")
SETUP = load_setup(SPACES / "unusual_cpu.yaml", "cpu")


def _methods() -> list[str]:
    assert SETUP.document is not None
    (spec,) = SETUP.document.parameters
    assert isinstance(spec, ParameterSpec)
    return [str(value) for value in spec.parameter.values]


METHODS = _methods()


class Methods:
    """Compiled and loaded kernels of one process, with one input pool for all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session: Session = CpuSession()
        self._pool = InputPool(PROBLEM)
        self._gate = Gate(self._session, PROBLEM, self._pool, deterministic=True)
        self._subjects: dict[str, list[tuple[str, Subject]]] = {}

    def passes(self, method: str, seed: int, *, edges: bool) -> None:
        """Asserts it. The timed shapes also go through what follows the timing."""
        if method not in self._subjects:
            self._subjects[method] = self._load(method)
        for role, subject in self._subjects[method]:
            if role != TIMED and not edges:
                continue
            verdict = Verdict()
            self._gate.examine(subject, PROBLEM.input_kinds, seed, verdict)
            if role == TIMED:
                inputs = self._pool.get(subject.case, "normal", seed)
                buffers = self._gate.buffers(subject, [inputs])
                launch = self._session.bind(subject.kernel, subject.plan, buffers.pointers())
                launch()
                sampler = self._session.sampler([launch] * 3)
                self._gate.replay(subject, sampler, buffers, seed + 1, verdict)
                self._gate.alter(subject, buffers, seed + 1, verdict)
                self._gate.reuse(subject, buffers, seed + 1, verdict)
            assert verdict.passed, (method, seed, verdict.reason)

    def _load(self, method: str) -> list[tuple[str, Subject]]:
        assert isinstance(SETUP.planner, Planner)
        jobs = SETUP.planner.proposal(0, Configuration({"METHOD": method})).cases
        compiles = {job.compile.key: job.compile for job in jobs}
        with ThreadPoolExecutor(2) as pool:
            built = pool.map(
                lambda job: CpuCompiler().compile(job, self._path(method, job.key), 60.0),
                compiles.values(),
            )
            assert not [words for words in built if isinstance(words, CompileFailure)]
        return [(job.role, self._subject(method, job)) for job in jobs]

    def _path(self, method: str, key: str) -> Path:
        return self._folder / f"{method}-{key[:8]}.so"

    def _subject(self, method: str, job: CaseJob) -> Subject:
        kernel = self._session.load(self._path(method, job.compile.key), job.plan)
        return Subject(job.case, job.plan, kernel)


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Methods]:
    threads = torch.get_num_threads()
    made = Methods(tmp_path_factory.mktemp("unusual"))
    torch.set_num_threads(1)  # PyTorch's waiting threads would take the cores of the kernel's
    yield made
    torch.set_num_threads(threads)


@pytest.mark.parametrize("number", range(len(METHODS)), ids=METHODS)
def test_an_unusual_way_is_no_wrong_way(methods: Methods, number: int) -> None:
    """Edge shapes with the first of the method's seeds."""
    for seed in range(number, SEEDS, len(METHODS)):
        methods.passes(METHODS[number], seed, edges=seed == number)


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_none_is_refused_for_any_of_100_seeds(methods: Methods, method: str) -> None:
    for seed in range(SEEDS):
        methods.passes(method, seed, edges=True)
