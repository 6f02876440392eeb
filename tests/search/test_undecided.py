"""A trial whose outcome is undecided was not measured: it is no failure, and is asked once more."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from evotune.run_options import SearchSettings
from evotune.search.catalog import STRATEGY_NAMES, create_strategy
from evotune.search.evolution import Evolution
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

from .landscapes import session, small_space, smooth

UNDECIDED = Outcome(OutcomeKind.UNDECIDED, reason="the machine is too noisy")


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_each_is_asked_twice_where_all_stay_undecided(name: str) -> None:
    space = small_space()
    search = session(name, space, lambda configuration: UNDECIDED, lookahead=0)
    asked = Counter(search.run(10_000))
    search.drain()
    assert search.exhausted
    assert asked == dict.fromkeys(space.enumerate(), 2)
    assert not search.strategy.elites


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_a_configuration_that_is_measured_the_second_time_counts(name: str) -> None:
    tried: Counter[Configuration] = Counter()

    def evaluate(configuration: Configuration) -> Outcome:
        tried[configuration] += 1
        return UNDECIDED if tried[configuration] == 1 else smooth(configuration)

    search = session(name, small_space(), evaluate, lookahead=0)
    search.run(10_000)
    assert search.exhausted
    assert set(tried.values()) == {2}
    assert len(search.strategy.elites) > 1


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_a_snapshot_knows_what_was_undecided(name: str) -> None:
    space = small_space()
    settings = SearchSettings(0, 8, 3, 0)
    told, restored = (create_strategy(name, space, settings) for _ in range(2))
    for number in range(6):
        configuration = told.ask(number, ())
        assert configuration is not None
        outcome = UNDECIDED if number % 2 else smooth(configuration)
        told.tell(Trial(number, configuration, outcome))
    restored.restore(json.loads(json.dumps(told.snapshot())))
    assert restored.ask(6, ()) == told.ask(6, ())
    assert restored.told == told.told == 6


def test_the_model_of_failures_does_not_see_it() -> None:
    search = Evolution(small_space(), SearchSettings(0, 8, 3, 0))
    failed = Outcome(OutcomeKind.TIMEOUT)
    for number, outcome in enumerate((UNDECIDED, failed, UNDECIDED)):
        configuration = search.ask(number, ())
        assert configuration is not None
        search.tell(Trial(number, configuration, outcome))
    known, succeeded = search._guide._told.newest(3, 10)
    assert (known.tolist(), succeeded.tolist()) == ([1], [0.0])
