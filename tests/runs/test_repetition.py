"""How many processes a proposal is timed in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from timing.test_processes import outcome

from evotune.runs.confirming import repeated, timed_again
from evotune.timing.processes import LEAST, MOST, combined
from evotune.trial import Configuration, Outcome, OutcomeKind
from evotune.workers.executor import Proposal

PROPOSAL = Proposal(3, Configuration({"N": 1}), confirm=True)
STEADY = itertools.cycle((1.5, 1.501, 1.499))
UNSTEADY = (1.5, 1.7, 1.4, 1.6, 1.45, 1.65)


def processes(speedups: Iterator[float]) -> tuple[list[Proposal], Outcome]:
    """The proposals for processes after the first, and the outcome of all processes."""
    asked: list[Proposal] = []

    def run(proposal: Proposal) -> Outcome:
        asked.append(proposal)
        return outcome(next(speedups))

    return asked, repeated(run, PROPOSAL, outcome(next(speedups)))


def test_steady_processes_are_few_and_unsteady_ones_many() -> None:
    asked, found = processes(iter(STEADY))
    assert len(asked) == LEAST - 1
    assert not any(each.confirm for each in asked)
    assert len(found.measurements[0].processes) == LEAST
    asked, found = processes(iter(UNSTEADY))
    assert [each.repeat for each in asked] == list(range(2, MOST + 1))
    assert found.measurements[0].processes == UNSTEADY


def test_no_process_is_added_for_what_callers_alone_move() -> None:
    rest = itertools.cycle((1.515, 1.485))  # 1.2% to either side of the mean of three
    found = repeated(lambda _: outcome(next(rest)), PROPOSAL, outcome(1.5), least_width=0.03)
    assert len(found.measurements[0].processes) == LEAST
    found = repeated(lambda _: outcome(next(rest)), PROPOSAL, outcome(1.5))
    assert len(found.measurements[0].processes) > LEAST


def test_who_is_surely_behind_the_leader_gets_one_process() -> None:
    leader = combined([outcome(s) for s in UNSTEADY])
    behind = repeated(_never, PROPOSAL, outcome(0.5), leader=leader)
    assert behind.fitness_high is not None
    assert leader.fitness_low is not None
    assert behind.fitness_high < leader.fitness_low
    assert behind.measurements[0].speedup_high > 0.55  # as uncertain as the leader's processes


def test_who_may_lead_goes_on() -> None:
    leader = combined([outcome(s) for s in UNSTEADY])
    rest = iter((1.5, 1.6, 1.4, 1.55, 1.45))
    found = repeated(lambda _: outcome(next(rest)), PROPOSAL, outcome(1.3), leader=leader)
    assert len(found.measurements[0].processes) == MOST


def test_without_time_there_are_as_many_as_an_interval_needs() -> None:
    rest = iter(UNSTEADY)
    found = repeated(lambda _: outcome(next(rest)), PROPOSAL, outcome(1.3), no_time=lambda: True)
    assert len(found.measurements[0].processes) == LEAST


def test_a_process_in_which_the_kernel_is_wrong_is_the_outcome() -> None:
    wrong = Outcome(OutcomeKind.WRONG_RESULT, reason="out is off by 3")
    assert repeated(lambda _: wrong, PROPOSAL, outcome(1.3)) is wrong
    assert repeated(_never, PROPOSAL, wrong) is wrong


def test_an_interrupted_repetition_keeps_what_it_has() -> None:
    assert repeated(lambda _: None, PROPOSAL, outcome(1.3)) == outcome(1.3)


def test_only_the_timed_cases_are_timed_again() -> None:
    from workers.faulty import planner

    whole = planner().proposal(5, Configuration({"FAULT": "none"}), confirm=True)
    again = timed_again(whole)
    assert {job.role for job in whole.cases} > {"timed"}
    assert {job.role for job in again.cases} == {"timed"}


def _never(proposal: Proposal) -> Outcome:
    raise AssertionError("no further process")


def test_a_leader_of_one_process_says_nothing_of_the_spread() -> None:
    """Such a leader comes from an older run, which timed each champion in one process."""
    rest = iter((0.5, 0.51, 0.49, 0.5, 0.5))
    found = repeated(lambda _: outcome(next(rest)), PROPOSAL, outcome(0.5), leader=outcome(1.5))
    assert len(found.measurements[0].processes) >= LEAST
