"""Which finalists are confirmed, in which order, and the fitness that each one has to beat."""

from __future__ import annotations

import math

import pytest

from evotune.engine.confirming import confirm
from evotune.execute.executor import Proposal
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial


def confirmed(low: float) -> Outcome:
    return Outcome(OutcomeKind.OK, fitness=low + 0.01, fitness_low=low, fitness_high=low + 0.02)


class Confirming:
    """An executor with given outcomes that notes the fitness each champion has to beat."""

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
    ):
        assert outcome.fitness == pytest.approx(outcomes[trial.number].fitness)
    return executor


def test_each_champion_is_held_against_the_best_bound_before_it() -> None:
    outcomes = {4: confirmed(0.3), 2: confirmed(0.5), 7: confirmed(0.4), 1: confirmed(0.2)}
    found = run(outcomes, count=4).held_against
    assert found == pytest.approx({4: -math.inf, 2: 0.3, 7: 0.5, 1: 0.5}, abs=0.005)


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
