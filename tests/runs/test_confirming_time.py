"""Confirming takes at most as long as searching did, or 30 s a champion; the leader comes first."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from report.runs import ok

from evotune.runs import confirming
from evotune.runs.confirming import BRIEF_S, ConfirmingTime, confirm
from evotune.timing.processes import LEAST, fitness_by_process
from evotune.trial import CUT_SHORT, Configuration, Outcome, OutcomeKind, Trial
from evotune.workers.executor import Proposal


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Slow:
    """An executor whose clock moves on while it works: a process takes `first_s` where it makes a
    champion's checks too, else `repeat_s`. Its speedups differ from process to process."""

    step = ""

    def __init__(self, clock: Clock, first_s: float, repeat_s: float) -> None:
        self._clock = clock
        self._seconds = {False: first_s, True: repeat_s}
        self._work: tuple[Proposal, float] | None = None
        self.until_s: dict[int, float] = {}
        self.contenders: dict[int, float] = {}
        self._contender = -math.inf
        self.dropped = 0
        self.failing: set[int] = set()

    def submit(self, proposal: Proposal) -> None:
        end_s = self._clock.now_s + self._seconds[bool(proposal.repeat)]
        self._work = proposal, end_s
        if proposal.confirm:
            self.until_s[proposal.number] = proposal.until_s
            self.contenders[proposal.number] = self._contender
        else:
            assert math.isinf(proposal.until_s), "a process that only times is not cut short"

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        assert self._work is not None
        proposal, end_s = self._work
        self._clock.now_s = min(end_s, self._clock.now_s + timeout_s)
        if self._clock.now_s < end_s:
            return []
        if proposal.number in self.failing:
            return [(proposal.number, Outcome(OutcomeKind.WRONG_RESULT))]
        speedup = 2.0 - 0.05 * proposal.number
        return [(proposal.number, ok(speedup * (1 + 0.03 * (proposal.repeat == 2))))]

    def set_contender(self, fitness: float) -> None:
        self._contender = fitness

    def drop(self) -> None:
        self._work = None
        self.dropped += 1

    def close(self) -> None: ...


def confirmed(
    executor: Slow, clock: Clock, limit_s: float, *, count: int = 3, of: Iterable[int] = range(9)
) -> tuple[dict[int, Outcome], list[str]]:
    said: list[str] = []
    trials = [Trial(n, Configuration({"N": n}), ok(2.0 - 0.05 * n)) for n in of]
    found = confirm(
        executor,
        trials,
        known={},
        count=count,
        propose=lambda trial: Proposal(trial.number, trial.configuration, confirm=True),
        stop=lambda: False,
        time=ConfirmingTime(limit_s, clock),
        give_up=said.append,
    )
    return {trial.number: outcome for trial, outcome in found}, said


def test_it_is_as_long_as_the_search_or_30_s_a_champion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "LEAST_EACH_S", 30.0)  # as it is outside of the tests
    assert ConfirmingTime.after(12.0, 3).limit_s == 90.0
    assert ConfirmingTime.after(600.0, 3).limit_s == 600.0
    assert not ConfirmingTime().is_over


def test_with_time_enough_nothing_is_cut_short() -> None:
    clock = Clock()
    executor = Slow(clock, first_s=10.0, repeat_s=1.0)
    found, said = confirmed(executor, clock, limit_s=200.0)
    assert list(found) == [0, 1, 2]
    assert not said
    assert not executor.dropped
    assert not any(outcome.flags.count(CUT_SHORT) for outcome in found.values())


def test_the_leader_comes_first_and_later_ones_share_what_is_left() -> None:
    clock = Clock()
    executor = Slow(clock, first_s=30.0, repeat_s=5.0)
    found, said = confirmed(executor, clock, limit_s=90.0)
    assert len(fitness_by_process(found[0])) >= LEAST
    leader_s = executor.until_s[0] - 100.0
    second_s = executor.until_s[1] - 100.0
    assert leader_s == pytest.approx(0.6 * 90.0), "its checks leave time for the timing"
    assert second_s < 100.0
    assert clock.now_s <= 100.0 + 90.0
    assert "1 of 3 confirmed" in said[0] or "2 of 3 confirmed" in said[0]


def test_the_checks_of_a_later_one_that_surely_loses_are_brief() -> None:
    """By the search's figures, that is. The leader has all its time."""
    clock = Clock()
    executor = Slow(clock, first_s=5.0, repeat_s=1.0)
    confirmed(executor, clock, limit_s=1000.0, of=(0, 8))
    assert executor.until_s[0] - 100.0 > 100.0
    assert executor.until_s[8] < clock.now_s + BRIEF_S


def test_confirming_ends_when_its_time_is_over_whatever_is_at_work() -> None:
    """The second champion would need 1,000 s."""
    clock = Clock()
    executor = Slow(clock, first_s=20.0, repeat_s=1.0)
    first, _ = confirmed(executor, clock, limit_s=90.0, count=1)
    assert list(first) == [0]
    began_s = clock.now_s
    hanging = Slow(clock, first_s=1000.0, repeat_s=1.0)
    found, said = confirmed(hanging, clock, limit_s=60.0)
    assert not found
    assert hanging.dropped == 1
    assert clock.now_s == pytest.approx(began_s + 60.0, abs=0.5)
    assert said == [
        "confirming ended after 60 s, which is as long as it may take: none confirmed, since the "
        "machine is too noisy or too slow; `resume --champions` continues, however long it takes"
    ]


def test_two_processes_in_time_confirm_a_champion_and_its_interval_is_wide() -> None:
    clock = Clock()
    executor = Slow(clock, first_s=40.0, repeat_s=30.0)
    found, said = confirmed(executor, clock, limit_s=90.0)
    outcome = found[0]
    assert CUT_SHORT in outcome.flags
    assert len(fitness_by_process(outcome)) == 2
    assert outcome.fitness_high is not None
    assert outcome.fitness_low is not None
    assert outcome.fitness_high - outcome.fitness_low > 0.3, "two processes tell little"
    assert "1 of 3 confirmed" in said[0]


def test_one_process_in_time_confirms_nobody_without_a_leader() -> None:
    clock = Clock()
    executor = Slow(clock, first_s=80.0, repeat_s=30.0)
    found, said = confirmed(executor, clock, limit_s=90.0)
    assert not found
    assert "none confirmed" in said[0]


def test_a_refusal_in_time_stays_a_refusal() -> None:
    """It is no question of time, so the trial is not tried again by a resumed run."""
    clock = Clock()
    executor = Slow(clock, first_s=20.0, repeat_s=5.0)
    executor.failing = {0, 1}
    found, said = confirmed(executor, clock, limit_s=90.0, count=1)
    assert [found[n].kind for n in (0, 1)] == [OutcomeKind.WRONG_RESULT] * 2
    assert found[2].ok
    assert executor.until_s[1] - 120.0 == pytest.approx(0.6 * 70.0), "still the first to pass"
    assert not said


def test_a_later_champion_in_one_process_is_as_uncertain_as_the_leader_was() -> None:
    clock = Clock()
    executor = Slow(clock, first_s=30.0, repeat_s=4.0)
    found, _ = confirmed(executor, clock, limit_s=85.0, count=2)
    assert list(found) == [0, 1]
    later = found[1]
    assert later.fitness_low is not None
    assert later.fitness is not None
    assert later.fitness - later.fitness_low > 0.02
