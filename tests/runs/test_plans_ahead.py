"""Likely champions are planned and compiled while the search ends."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from report.runs import META, make_run, ok
from workers.faulty import SPACE, compile_job, open_executor

from evotune.backends import registry
from evotune.backends.cpu import CpuBackend
from evotune.errors import UsageError
from evotune.run_options import RunOptions
from evotune.runs import kernel_run
from evotune.runs.kernel_run import InlineExecutor, KernelRun, PlansAhead
from evotune.runs.observer import SilentObserver
from evotune.runs.search_loop import SearchLoop, first_asked
from evotune.runs.setup import load_kernel_setup
from evotune.search.catalog import create_strategy
from evotune.store import RunStore
from evotune.trial import Configuration, Trial
from evotune.workers.executor import TIMED, Proposal
from evotune.workers.local import BackgroundExecutor
from tests.patience import PATIENCE_S

TRIALS = [Trial(n, Configuration({"N": n}), ok(1.0)) for n in range(5)]


def test_each_plan_is_made_once_and_the_first_comes_first() -> None:
    made: list[int] = []
    third = threading.Event()

    def plan(trial: Trial) -> Proposal:
        made.append(trial.number)
        if trial.number == 3:
            third.set()
        return Proposal(trial.number, trial.configuration)

    plans = PlansAhead(plan)
    plans.expect([TRIALS[2], TRIALS[0], TRIALS[3]])
    assert third.wait(PATIENCE_S)
    assert plans.of(TRIALS[3]).number == 3
    assert plans.of(TRIALS[4]).number == 4
    plans.expect(TRIALS)
    assert [plans.of(trial).number for trial in TRIALS] == [0, 1, 2, 3, 4]
    assert made[:4] == [2, 0, 3, 4]
    assert sorted(made) == [0, 1, 2, 3, 4]


def test_those_that_are_expected_no_more_are_not_planned() -> None:
    begun, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def plan(trial: Trial) -> Proposal:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        made.append(trial.number)
        return Proposal(trial.number, trial.configuration)

    plans = PlansAhead(plan)
    plans.expect(TRIALS[:2])
    assert begun.wait(PATIENCE_S)
    plans.expect([TRIALS[2]])
    go_on.set()
    assert plans.of(TRIALS[2]).number == 2
    assert 1 not in made


def test_a_plan_that_fails_is_told_to_whoever_asks_for_it() -> None:
    failed = threading.Event()

    def plan(trial: Trial) -> Proposal:
        failed.set()
        raise UsageError("no launch")

    plans = PlansAhead(plan)
    plans.expect(TRIALS[:1])
    assert failed.wait(PATIENCE_S)
    with pytest.raises(UsageError, match="no launch"):
        plans.of(TRIALS[0])


class Compiling(BackgroundExecutor):
    """Keeps what it is to compile ahead."""

    def __init__(self) -> None:
        self.ahead: list[str] = []

    def compile_ahead(self, jobs: Any) -> None:
        self.ahead += [job.key for job in jobs]


@pytest.fixture
def kind(tmp_path: Path) -> Any:
    outcomes = [ok(1.0 + 0.1 * n) for n in range(4)]
    defaults = {n: {"FAULT": "none"} for n in range(4)}
    run = make_run(tmp_path, outcomes, configurations=defaults, meta=META)
    setup = load_kernel_setup(SPACE, "cpu")
    with RunStore.open_for_writing(run.store) as store:
        yield KernelRun(
            run,
            store,
            setup,
            options=RunOptions(champions=2),
            observer=SilentObserver(),
            cluster=None,
        )


def test_the_best_so_far_are_planned_and_compiled_ahead(
    kind: KernelRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.named("cpu"), "exclusive", False)
    monkeypatch.setattr(kernel_run, "_LOOK_S", 0.0)
    monkeypatch.setattr(kernel_run, "_LOOK_SHARE", 0)
    executor = Compiling()
    kind.expect_finalists(executor)
    best = [trial for trial in kind._store.best_first()][:2]
    assert [trial.number for trial in best] == [3, 2]
    proposals = [kind._plans.of(trial) for trial in best]
    assert all(made.confirm for made in proposals)
    kind.expect_finalists(executor)
    assert set(executor.ahead) == {key for made in proposals for key in made.compile_jobs}
    before = list(executor.ahead)
    kind.expect_finalists(executor)
    assert executor.ahead == before


def test_nothing_is_made_ahead_where_that_would_disturb_measurements(kind: KernelRun) -> None:
    """On the CPU."""
    executor = Compiling()
    kind.expect_finalists(executor)
    assert kind._expected == []
    assert executor.ahead == []


class Asked(InlineExecutor):
    def __init__(self) -> None:
        super().__init__(lambda configuration: ok(1.0))
        self.asked: list[Configuration] = []

    def submit(self, proposal: Proposal) -> None:
        self.asked.append(proposal.configuration)
        super().submit(proposal)


@pytest.mark.parametrize("strategy", ["random", "evolution"])
def test_a_search_asks_first_for_what_was_compiled_ahead(tmp_path: Path, strategy: str) -> None:
    space = load_kernel_setup(SPACE, "cpu").space
    start = space.sample(random.Random(3))
    options = RunOptions(strategy=strategy, trials=12, lookahead=4, starts=(start.to_json(),))
    first = first_asked(create_strategy(strategy, space, options), options)
    assert first[0] == start
    executor = Asked()
    with RunStore.create(tmp_path / "store.sqlite", {}) as store:
        SearchLoop(
            store,
            create_strategy(strategy, space, options),
            cast(Any, executor),
            Proposal,
            options=options,
            searched_s=0.0,
            stop=lambda: False,
            observer=SilentObserver(),
        ).run()
    assert len(first) == 5
    assert executor.asked[:5] == first


def test_compilers_work_while_baselines_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuBackend, "exclusive", False)
    executor = open_executor(tmp_path)
    try:
        executor.compile_ahead([compile_job("none")])
        cases = load_kernel_setup(SPACE, "cpu").cases[TIMED]
        assert executor.time_baselines(cases).timings
        while executor._pool.running:
            executor.poll(0.1)
        assert any(path.is_file() for path in (tmp_path / "cache").rglob("*"))
    finally:
        executor.close()


def test_the_last_quarter_of_a_search_says_that_it_ends_soon(tmp_path: Path) -> None:
    setup = load_kernel_setup(SPACE, "cpu")
    options = RunOptions(strategy="random", trials=8, lookahead=2)
    told: list[int] = []
    with RunStore.create(tmp_path / "store.sqlite", {}) as store:
        loop = SearchLoop(
            store,
            create_strategy("random", setup.space, options),
            cast(Any, InlineExecutor(lambda configuration: ok(1.0))),
            Proposal,
            options=options,
            searched_s=0.0,
            stop=lambda: False,
            observer=SilentObserver(),
            late=lambda: told.append(loop._told),
        )
        assert loop.run() == "trials"
    assert told == [6, 7, 8]
