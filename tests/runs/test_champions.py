"""Which finalists are confirmed, in which order, and the fitness that each one has to beat."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report.runs import META, failed, make_run, ok

from evotune.run_options import RunOptions
from evotune.runs import confirming
from evotune.runs.confirming import confirm
from evotune.runs.kernel_run import KernelRun
from evotune.runs.observer import SilentObserver
from evotune.store import UNCONFIRMED, RunStore
from evotune.timing.processes import LEAST, MOST
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial
from evotune.workers.executor import Proposal


def confirmed(low: float) -> Outcome:
    return Outcome(OutcomeKind.OK, fitness=low + 0.01, fitness_low=low, fitness_high=low + 0.02)


class Confirming:
    """An executor with given outcomes that notes the fitness each champion has to beat."""

    step = "random cases 12 of 24"

    def __init__(self, outcomes: dict[int, Outcome]) -> None:
        self._outcomes = outcomes
        self._contender = math.nan
        self._submitted: list[int] = []
        self.submitted: list[tuple[int, bool]] = []
        self.held_against: dict[int, float] = {}

    def submit(self, proposal: Proposal) -> None:
        self.held_against[proposal.number] = self._contender
        self.submitted.append((proposal.number, bool(proposal.repeat)))
        self._submitted.append(proposal.number)

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        return [(number, self._outcomes[number]) for number in (self._submitted.pop(),)]

    def set_contender(self, fitness: float) -> None:
        self._contender = fitness

    def drop(self) -> None: ...

    def close(self) -> None: ...


def run(
    outcomes: dict[int, Outcome],
    count: int,
    known: dict[int, Outcome] | None = None,
    *,
    late: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Confirming:
    executor = Confirming(outcomes)
    finalists = [Trial(n, Configuration({"N": n}), confirmed(0.0)) for n in outcomes]
    for trial, outcome in confirm(
        executor,
        finalists,
        known=known or {},
        count=count,
        propose=lambda trial: Proposal(trial.number, trial.configuration, confirm=True),
        stop=lambda: False,
        no_time=lambda: late,
        tell=tell,
    ):
        assert outcome.fitness == pytest.approx(outcomes[trial.number].fitness)
    return executor


def test_each_champion_is_held_against_the_best_bound_before_it() -> None:
    outcomes = {4: confirmed(0.3), 2: confirmed(0.5), 7: confirmed(0.4), 1: confirmed(0.2)}
    found = run(outcomes, count=4).held_against
    assert found == pytest.approx({4: -math.inf, 2: 0.3, 7: 0.5, 1: 0.5}, abs=0.005)


def test_each_step_says_which_champion_and_process_it_is_of() -> None:
    outcomes = {4: Outcome(OutcomeKind.NAN), 2: confirmed(0.5), 7: confirmed(0.4)}
    told: list[str] = []
    run(outcomes, count=2, tell=told.append)
    processes = [f"process {number} of at most {MOST}" for number in range(1, LEAST + 1)]
    assert list(dict.fromkeys(told)) == [
        f"{which}, {process}: random cases 12 of 24"
        for which, some in (
            ("confirming 1 of 2 (trial 4)", processes[:1]),
            ("confirming 1 of 2 (trial 2)", processes),
            ("confirming 2 of 2 (trial 7)", processes),
        )
        for process in some
    ]


def test_who_fails_sets_no_bound_and_is_replaced() -> None:
    outcomes = {
        4: Outcome(OutcomeKind.NAN),
        2: confirmed(0.5),
        7: confirmed(0.4),
        1: confirmed(1.0),
    }
    found = run(outcomes, count=2).held_against
    assert found == pytest.approx({4: -math.inf, 2: -math.inf, 7: 0.5}, abs=0.005)


def test_what_an_interrupted_session_confirmed_counts_too() -> None:
    outcomes = {4: confirmed(0.3), 2: confirmed(0.5), 7: confirmed(0.4)}
    found = run(outcomes, count=3, known={4: outcomes[4], 2: outcomes[2]}).held_against
    assert found == {7: 0.5}


def test_when_the_minutes_are_over_one_champion_is_confirmed_all_the_same() -> None:
    outcomes = {4: Outcome(OutcomeKind.NAN), 2: confirmed(0.5), 7: confirmed(0.4)}
    assert list(run(outcomes, count=3, late=True).held_against) == [4, 2]


# --- confirming again after more trials, or with a larger number of champions ---------------------


class Again:
    """A run that is confirmed in several sessions, with the given outcomes."""

    def __init__(self, store: RunStore, outcomes: dict[int, Outcome]) -> None:
        self._store = store
        self._outcomes = outcomes

    def confirmed(
        self, champions: int, stop_after: int = 99, *, late: bool = False, patient: bool = False
    ) -> list[int]:
        """What this session confirms."""
        device = types.SimpleNamespace(name=META["device"]["name"], backend="cpu")
        planner = types.SimpleNamespace(proposal=_proposal)
        setup: Any = types.SimpleNamespace(devices=[device], profile=device, planner=planner)
        options = RunOptions(champions=champions)
        kind = KernelRun(
            *(None, self._store, setup),  # type: ignore[arg-type]
            options=options,
            observer=SilentObserver(),
            cluster=None,
            patient=patient,
        )
        made: list[int] = []
        self.executor = Confirming(self._outcomes)
        for trial, outcome in kind.confirmed(
            self.executor,
            stop=lambda: len(made) == stop_after,
            no_time=lambda: late,
        ):
            self._store.confirm(trial.number, outcome, 100.0)
            made.append(trial.number)
        return made

    def found(self, speedup: float) -> None:
        """One more trial of the search."""
        number = self._store.count()
        self._store.append(Trial(number, Configuration({"N": number}), ok(speedup)), 100.0)
        self._store.sync()


def _proposal(number: int, configuration: Configuration, *, confirm: bool) -> Proposal:
    return Proposal(number, configuration, confirm=confirm)


SEARCHED = [2.0, 1.9, 1.8, 1.7, 1.6]


def test_a_larger_number_of_champions_confirms_those_that_are_missing(tmp_path: Path) -> None:
    run = make_run(tmp_path, [ok(speedup) for speedup in SEARCHED])
    with RunStore.open_for_writing(run.store) as store:
        again = Again(store, {0: ok(1.1), 1: ok(1.2), 2: ok(1.15), 3: ok(1.05)})
        assert again.confirmed(1) == [0]
        assert again.confirmed(3, stop_after=1) == [1], "interrupted"
        assert again.confirmed(3) == [2]
        assert again.confirmed(3) == []
        assert again.confirmed(4) == [3]


def test_a_trial_found_later_is_confirmed_if_it_is_better_than_the_confirmed_figures(
    tmp_path: Path,
) -> None:
    """The search's figures of the first champions were too high: 1.4 is less than these, and more
    than what was confirmed."""
    run = make_run(tmp_path, [ok(2.0), failed(OutcomeKind.NAN), ok(1.9), ok(1.8)])
    outcomes = {0: ok(1.1), 2: ok(1.2), 3: failed(OutcomeKind.NAN), 4: ok(1.3)}
    outcomes |= {5: ok(1.25), 6: ok(1.0)}
    with RunStore.open_for_writing(run.store) as store:
        again = Again(store, outcomes)
        assert again.confirmed(2) == [0, 2]
        again.found(1.4)
        assert again.confirmed(2) == [4], "3 was not among the best before"
        assert again.confirmed(2) == []
        again.found(1.35)
        assert again.confirmed(2, stop_after=1) == [5]
        assert again.confirmed(2) == []
        again.found(1.0)
        assert again.confirmed(2) == []
        assert again.confirmed(5) == [3, 6], "more are asked for than were confirmed"


def test_later_sessions_are_held_against_the_champions_of_earlier_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path, [ok(2.0), ok(1.9), ok(1.8), ok(1.7)])
    outcomes = {0: ok(1.1), 1: ok(1.2), 4: ok(1.15), 5: ok(1.3)}
    with RunStore.open_for_writing(run.store) as store:
        again = Again(store, outcomes)
        assert again.confirmed(2) == [0, 1]
        again.found(1.4)
        assert again.confirmed(2, late=True) == [], "no time, and there is a champion"
        assert again.confirmed(2) == [4]
        assert math.log(1.1) < again.executor.held_against[4] < math.log(1.2)


def test_a_run_says_that_confirming_had_no_time_and_a_patient_session_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirming, "LEAST_EACH_S", 0.0)
    run = make_run(tmp_path, [ok(speedup) for speedup in SEARCHED])
    with RunStore.open_for_writing(run.store) as store:
        monkeypatch.setattr(store, "searched_s", lambda: 0.0)
        again = Again(store, {0: ok(1.1), 1: ok(1.2)})
        assert again.confirmed(2) == []
        assert "none confirmed" in store.meta(UNCONFIRMED)
        assert again.confirmed(2, patient=True) == [0, 1]
        assert store.meta(UNCONFIRMED) == ""


def test_a_run_that_an_older_evotune_confirmed_confirms_what_is_missing(tmp_path: Path) -> None:
    run = make_run(tmp_path, [ok(speedup) for speedup in SEARCHED])
    with RunStore.open_for_writing(run.store) as store:
        again = Again(store, {0: ok(1.1), 1: ok(1.2)})
        store.confirm(0, ok(1.1), 100.0)
        assert again.confirmed(2) == [1]
