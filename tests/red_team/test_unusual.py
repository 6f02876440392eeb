"""Right kernels that compute in unusual ways: the gate refuses none of them, whatever the inputs.

Every method of the spaces unusual_cpu*.yaml goes through the gate on a timed shape and edge shapes,
on all input kinds, and through the checks that follow the timing. `make test` takes every 20th
method, with one seed; `make soak` takes all methods with 100 seeds each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems import create_problem
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.trial import Configuration
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from evotune.workers.executor import TIMED
from tests.cpu_kernels import loaded, one_thread

from .in_process import childless
from .pipeline import SPACES, choices
from .timed import judge_timed

SEEDS = 100
CALLS, WATCHED_RUNS = 8, 3
METHODS = [
    (space, method)
    for space in (
        "unusual_cpu.yaml",
        "unusual_cpu_attention.yaml",
        "unusual_cpu_softmax.yaml",
        "unusual_cpu_rms_norm.yaml",
        "unusual_cpu_matmul.yaml",
        "unusual_cpu_branches.yaml",
        "unusual_cpu_largest.yaml",
    )
    for method in choices(space)[1]
]
IDS = [f"{space.removesuffix('.yaml')}-{method}" for space, method in METHODS]


class Methods:
    """Compiled and loaded kernels of a space in this process, with one input pool for all."""

    def __init__(self, folder: Path, space: str) -> None:
        setup = load_setup(SPACES / space, "cpu")
        assert isinstance(setup.planner, Planner)
        assert setup.document is not None
        assert setup.document.problem is not None
        self._planner = setup.planner
        self._gene, _ = choices(space)
        spec = setup.document.problem
        self._problem = create_problem(spec.name, spec.dtype, setup.document.root)
        self._folder = folder
        self._session = CpuSession()
        self._pool = InputPool(self._problem)
        self._gate = Gate(self._session, self._problem, self._pool, deterministic=True)
        self._subjects: dict[str, list[tuple[str, Subject]]] = {}

    def passes(self, method: str, seed: int) -> None:
        """Asserts that the method passes the gate. The timed shapes also go through the checks that
        follow the timing."""
        if method not in self._subjects:
            self._subjects[method] = self._load(method)
        for role, subject in self._subjects[method]:
            verdict = Verdict()
            self._gate.examine(subject, self._problem.input_kinds, seed, verdict)
            if role == TIMED:
                judge_timed(
                    self._session,
                    self._gate,
                    self._pool,
                    subject,
                    seed=seed,
                    verdict=verdict,
                    calls=CALLS,
                    watched_runs=WATCHED_RUNS,
                )
            assert verdict.passed, (method, seed, verdict.reason)

    def _load(self, method: str) -> list[tuple[str, Subject]]:
        genes = {**self._planner.bound.default(), self._gene: method}
        jobs = self._planner.proposal(0, Configuration(genes)).cases
        return [(job.role, loaded(self._session, job, self._folder)) for job in jobs]


class AllMethods:
    """The methods of every space; a space is opened when one of its methods is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spaces: dict[str, Methods] = {}

    def passes(self, number: int, seed: int) -> None:
        space, method = METHODS[number]
        if space not in self._spaces:
            self._spaces[space] = Methods(self._folder, space)
        self._spaces[space].passes(method, seed)


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllMethods]:
    with one_thread(), childless():
        yield AllMethods(tmp_path_factory.mktemp("unusual"))


@pytest.mark.parametrize("number", range(0, len(METHODS), 40), ids=IDS[::40])
def test_an_unusual_way_is_no_wrong_way(methods: AllMethods, number: int) -> None:
    methods.passes(number, number)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(len(METHODS)), ids=IDS)
def test_none_is_refused_for_any_of_100_seeds(methods: AllMethods, number: int) -> None:
    for seed in range(SEEDS):
        methods.passes(number, seed)
