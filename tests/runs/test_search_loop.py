"""The loop asks proposal n when exactly the outcomes before n - LOOKAHEAD are told."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from evotune.backends.base.recorded import read_recorded_space
from evotune.run_options import RunOptions
from evotune.runs import search_loop
from evotune.runs.observer import SilentObserver
from evotune.runs.search_loop import SearchLoop
from evotune.search.catalog import create_strategy
from evotune.store import RunStore
from evotune.trial import QUARANTINED, Configuration, Json, Outcome, OutcomeKind, Trial
from evotune.workers.executor import Proposal

from .runs import RECORDING


class ShufflingExecutor:
    """Finishes proposals in a random order, a few at a time, as several devices would."""

    step = ""

    def __init__(self, outcome_of: Callable[[Configuration], Outcome], seed: int) -> None:
        self._outcome_of = outcome_of
        self._rng = random.Random(seed)
        self._waiting: list[Proposal] = []
        self.contenders: list[float] = []

    def submit(self, proposal: Proposal) -> None:
        self._waiting.append(proposal)

    def set_contender(self, fitness: float) -> None:
        self.contenders.append(fitness)

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        self._rng.shuffle(self._waiting)
        count = self._rng.randint(0, len(self._waiting))
        finished, self._waiting = self._waiting[:count], self._waiting[count:]
        return [(p.number, self._outcome_of(p.configuration)) for p in finished]

    def drop(self) -> None:
        self._waiting.clear()

    def close(self) -> None: ...


class WatchedStrategy:
    """Notes how many trials were told at each ask."""

    def __init__(self, strategy: Json) -> None:
        self._strategy = strategy
        self.told_at_ask: dict[int, int] = {}

    def __getattr__(self, name: str) -> Json:
        return getattr(self._strategy, name)

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        assert number not in self.told_at_ask
        self.told_at_ask[number] = self._strategy.told
        return self._strategy.ask(number, pending)  # type: ignore[no-any-return]


def run_loop(
    path: Path,
    seed: int,
    *,
    trials: int = 120,
    lookahead: int = 7,
    stop: bool = False,
    name: str = "evolution",
    executor: ShufflingExecutor | None = None,
    quarantined: Path | None = None,
    **budget: Json,
) -> tuple[list[Trial], WatchedStrategy, str]:
    recording = read_recorded_space(RECORDING)
    options = RunOptions(
        seed=3, population=16, elites=4, lookahead=lookahead, trials=trials, **budget
    )
    strategy = WatchedStrategy(create_strategy(name, recording.space, options))
    opened = RunStore.open_for_writing(path) if path.exists() else RunStore.create(path)
    with opened as store:
        loop = SearchLoop(
            store,
            strategy,
            executor or ShufflingExecutor(recording.outcome, seed),
            Proposal,
            options=options,
            searched_s=0.0,
            stop=lambda: stop and store.count() >= 40,
            observer=SilentObserver(),
            quarantined=quarantined,
        )
        return_reason = loop.run()
        return list(store.trials()), strategy, return_reason


@pytest.mark.sweep(2)
@pytest.mark.parametrize("lookahead", [0, 1, 7, 40])
def test_each_proposal_sees_exactly_the_outcomes_before_the_lookahead(
    tmp_path: Path, lookahead: int
) -> None:
    _, strategy, _ = run_loop(tmp_path / "store.sqlite", 1, lookahead=lookahead)
    assert strategy.told_at_ask == {n: max(0, n - lookahead) for n in range(120)}


def test_the_history_does_not_depend_on_the_order_in_which_outcomes_arrive(tmp_path: Path) -> None:
    histories = [run_loop(tmp_path / f"{seed}.sqlite", seed)[0] for seed in range(3)]
    assert all(history == histories[0] for history in histories)


def test_a_stop_keeps_what_arrived_and_the_next_session_goes_on_from_there(tmp_path: Path) -> None:
    whole, _, _ = run_loop(tmp_path / "whole.sqlite", 1)
    path = tmp_path / "stopped.sqlite"
    part, _, reason = run_loop(path, 2, stop=True)
    assert reason == "interrupted"
    assert 40 <= len(part) < 120
    again, strategy, reason = run_loop(path, 3)
    assert reason == "trials"
    assert again == whole
    assert not {trial.number for trial in part} & set(strategy.told_at_ask), "none is asked twice"


def test_a_contender_would_become_an_elite(tmp_path: Path) -> None:
    executor = ShufflingExecutor(read_recorded_space(RECORDING).outcome, 1)
    trials, _, _ = run_loop(tmp_path / "store.sqlite", 1, name="random", executor=executor)
    best: list[float] = []
    least = []  # the worst of the four elites, once there are four
    for trial in trials:
        if trial.outcome.fitness is not None:
            best = sorted([*best, trial.outcome.fitness], reverse=True)[:4]
            if len(best) == 4 and best[-1] not in least:
                least.append(best[-1])
    assert executor.contenders == least
    assert least == sorted(least)


def test_quarantined_trials_leave_scripts(tmp_path: Path) -> None:
    lost = Outcome(OutcomeKind.WORKER_LOST, flags=(QUARANTINED,))
    folder = tmp_path / "quarantine"
    executor = ShufflingExecutor(lambda configuration: lost, 1)
    run_loop(tmp_path / "store.sqlite", 1, trials=3, executor=executor, quarantined=folder)
    assert {path.name for path in folder.glob("*.sh")} == {f"trial-{n}.sh" for n in range(3)}


def test_a_space_that_is_used_up_ends_the_run(tmp_path: Path) -> None:
    trials, _, reason = run_loop(tmp_path / "store.sqlite", 1, trials=10_000, name="random")
    assert reason == "exhausted"
    assert len(trials) == len(read_recorded_space(RECORDING).space)


def test_stops_when_the_target_is_reached_and_tells_what_is_in_flight(tmp_path: Path) -> None:
    whole, _, _ = run_loop(tmp_path / "whole.sqlite", 1, name="random")
    target = sorted(t.outcome.fitness for t in whole if t.outcome.fitness is not None)[-3]
    first = next(t.number for t in whole if (t.outcome.fitness or -9e9) >= target)
    stopped, _, reason = run_loop(
        tmp_path / "s.sqlite", 2, name="random", speedup=math.exp(target - 1e-9)
    )
    assert reason == "speedup"
    # Trials are told in order: the target is reached when `first` is told, seven are in flight.
    assert stopped == whole[: first + 1 + 7]


def test_stops_without_improvement_and_resumes_with_more_patience(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    stopped, _, reason = run_loop(path, 1, name="random", no_improvement=15)
    assert reason == "no_improvement"
    best, improved = float("-inf"), 0
    for trial in stopped[:-7]:
        if trial.outcome.fitness is not None and trial.outcome.fitness > best:
            best, improved = trial.outcome.fitness, trial.number + 1
    assert len(stopped) - 7 - improved == 15
    again, _, reason = run_loop(path, 3, name="random", no_improvement=10_000)
    whole, _, _ = run_loop(tmp_path / "whole.sqlite", 4, name="random")
    assert (reason, again) == ("trials", whole)


def test_counts_only_trials_that_reached_a_compiler(tmp_path: Path) -> None:
    """A recording compiles nothing, so it never uses up that budget."""
    trials, _, reason = run_loop(tmp_path / "store.sqlite", 1, name="random", compiles=5)
    assert (reason, len(trials)) == ("trials", 120)


@pytest.mark.parametrize("budget", [{"no_improvement": 25}, {"compiles": 35}])
def test_a_resume_from_a_snapshot_ends_where_an_unbroken_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, Json]
) -> None:
    monkeypatch.setattr(search_loop, "_SNAPSHOT_EVERY", 20)
    searched, _, _ = run_loop(tmp_path / "searched.sqlite", 1, name="random")
    numbers = {trial.configuration: trial.number for trial in searched}

    def outcome_of(configuration: Configuration) -> Outcome:
        number = numbers[configuration]
        # 25 trials after the best, 44 is in flight.
        fitness = {14: 1.0, 44: 2.0}.get(number, 0.0)
        stage = "compile" if number % 2 else "plan"
        return Outcome(OutcomeKind.OK, fitness=fitness, stage_s={stage: 0.1})

    def run(name: str, trials: int) -> tuple[str, list[Trial]]:
        executor = ShufflingExecutor(outcome_of, 1)
        found, _, reason = run_loop(
            tmp_path / name, 1, name="random", trials=trials, executor=executor, **budget
        )
        return reason, found

    assert run("resumed.sqlite", 50)[0] == "trials"
    with RunStore.open_for_reading(tmp_path / "resumed.sqlite") as store:
        assert (store.snapshot(at_most=50 - 7) or (0,))[0] == 40
    resumed = run("resumed.sqlite", 120)
    assert resumed[0] in budget
    assert resumed == run("unbroken.sqlite", 120)
