"""The promises that every strategy keeps, however it finds good configurations."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.errors import StoreError
from evotune.run_options import SearchSettings
from evotune.search.catalog import STRATEGY_NAMES, create_strategy
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial
from tests.space.spaces import bind_text
from tests.sweeps import swept

from .landscapes import all_fail, recording, session, small_space, smooth

every_strategy = pytest.mark.parametrize("name", STRATEGY_NAMES)
every_lookahead = pytest.mark.parametrize("lookahead", [0, 1, 16, 64])
EVALUATIONS = {"smooth": smooth, "all_fail": all_fail}


@every_strategy
@every_lookahead
@pytest.mark.parametrize("evaluation", list(EVALUATIONS))
def test_covers_a_small_space_without_repeats_then_has_nothing_left(
    name: str, lookahead: int, evaluation: str
) -> None:
    space = small_space()
    search = session(name, space, EVALUATIONS[evaluation], lookahead=lookahead)
    proposals = search.run(10_000)
    assert search.exhausted
    assert sorted(c.key for c in proposals) == sorted(c.key for c in space.enumerate())
    search.drain()
    assert search.strategy.ask(len(proposals), ()) is None


@every_strategy
@pytest.mark.parametrize("lookahead", swept((0, 1, 16, 64), lambda each: each == 16))
def test_proposes_valid_configurations_never_told_or_pending(name: str, lookahead: int) -> None:
    recorded = recording()
    proposals = session(name, recorded.space, recorded.outcome, lookahead=lookahead).run(400)
    assert all(recorded.space.is_valid(c) for c in proposals)
    assert len(set(proposals)) == 400


@every_strategy
def test_an_inactive_value_may_lie_outside_the_domain(name: str) -> None:
    space = bind_text(
        "parameters: {A: [1, 2, 4], B: {values: [2, 4], when: A > 1, otherwise: 0}, "
        "C: {choices: [early], when: B > 2, otherwise: late}, D: {range: [1, 30]}}"
    )

    def evaluate(configuration: Configuration) -> Outcome:
        return Outcome(OutcomeKind.OK, fitness=float(configuration["D"]))

    search = session(name, space, evaluate, lookahead=0)
    proposals = search.run(120)
    assert all(space.is_valid(c) for c in proposals)
    assert len({c["C"] for c in proposals}) == 2
    resumed = create_strategy(name, space, SearchSettings(0, 8, 3, 0))
    resumed.restore(json.loads(json.dumps(search.strategy.snapshot())))
    assert resumed.ask(120, ()) == search.strategy.ask(120, ())


@every_strategy
@pytest.mark.parametrize("trials", [100, pytest.param(200, marks=pytest.mark.soak)])
def test_the_same_seed_and_outcomes_give_the_same_proposals(name: str, trials: int) -> None:
    recorded = recording()
    first = session(name, recorded.space, recorded.outcome, seed=5).run(trials)
    assert session(name, recorded.space, recorded.outcome, seed=5).run(trials) == first


@every_strategy
def test_a_seed_may_be_negative(name: str) -> None:
    assert len(session(name, small_space(), smooth, seed=-1).run(20)) == 20


@pytest.mark.parametrize("name", [n for n in STRATEGY_NAMES if n != "exhaustive"])
def test_another_seed_gives_other_proposals(name: str) -> None:
    recorded = recording()
    first = session(name, recorded.space, recorded.outcome, seed=5).run(50)
    assert session(name, recorded.space, recorded.outcome, seed=6).run(50) != first


@every_strategy
@pytest.mark.parametrize("trials", [100, pytest.param(150, marks=pytest.mark.soak)])
def test_asking_changes_nothing(name: str, trials: int) -> None:
    """Extra asks (a second time, out of turn, with other pending ones) change no later proposal."""
    recorded = recording()
    plain = session(name, recorded.space, recorded.outcome)
    nosy = session(name, recorded.space, recorded.outcome)
    rng = random.Random(0)
    for count in range(1, trials):
        plain.run(count)
        pending = tuple(nosy.pending)
        number = len(nosy.proposals)
        answer = nosy.strategy.ask(number, pending)
        before = nosy.strategy.snapshot()
        nosy.strategy.ask(rng.randrange(1000), pending[: rng.randrange(len(pending) + 1)])
        nosy.strategy.ask(number, [*pending, recorded.space.sample(rng)])
        assert nosy.strategy.ask(number, pending) == answer
        assert nosy.strategy.snapshot() == before
        nosy.run(count)
    assert nosy.proposals == plain.proposals


@every_strategy
def test_proposals_depend_on_outcomes_only_once_they_are_told(name: str) -> None:
    """Only the order of tells counts, not when the engine learnt an outcome."""
    recorded = recording()
    wide = session(name, recorded.space, recorded.outcome, lookahead=16)
    wide.run(100)
    replayed = create_strategy(name, recorded.space, SearchSettings(0, 8, 3, 16))
    outcomes = [recorded.outcome(c) for c in reversed(wide.proposals)][::-1]
    for number, configuration in enumerate(wide.proposals):
        pending = wide.proposals[max(0, number - 16) : number]
        assert replayed.ask(number, pending) == configuration
        if number >= 16:
            told = number - 16
            replayed.tell(Trial(told, wide.proposals[told], outcomes[told]))


@pytest.mark.sweep(2)
@every_strategy
@settings(max_examples=4, derandomize=True)
@given(stop=st.integers(0, 180), seed=st.integers(0, 3))
def test_a_restored_snapshot_is_the_full_fold(name: str, stop: int, seed: int) -> None:
    recorded = recording()
    search = session(name, recorded.space, recorded.outcome, seed=seed)
    search.run(stop)
    snapshot = json.loads(json.dumps(search.strategy.snapshot()))
    restored = session(name, recorded.space, recorded.outcome, seed=seed)
    restored.strategy.ask(3, ())  # what it had memoised before must not matter
    restored.strategy.restore(snapshot)
    restored.proposals = list(search.proposals)
    restored.pending = search.pending.copy()
    assert restored.strategy.snapshot() == snapshot
    assert restored.run(stop + 60) == search.run(stop + 60)
    assert restored.strategy.snapshot() == search.strategy.snapshot()
    for view in ("told", "generation", "best", "elites", "contender"):
        assert getattr(restored.strategy, view) == getattr(search.strategy, view)


@every_strategy
def test_a_restored_snapshot_can_exhaust_the_space(name: str) -> None:
    space = small_space()
    search = session(name, space, smooth)
    search.run(len(space) - 3)
    restored = session(name, space, smooth)
    restored.run(5)
    restored.strategy.restore(search.strategy.snapshot())
    restored.proposals, restored.pending = list(search.proposals), search.pending.copy()
    assert len(set(restored.run(10_000))) == len(space)


@every_strategy
def test_refuses_a_snapshot_of_another_search(name: str) -> None:
    search = session(name, small_space(), smooth, seed=1)
    search.run(30)
    snapshot = search.strategy.snapshot()
    for other in (
        create_strategy(name, small_space(), SearchSettings(2, 8, 3)),
        create_strategy(name, small_space(), SearchSettings(1, 16, 3)),
        create_strategy(name, recording().space, SearchSettings(1, 8, 3)),
    ):
        with pytest.raises(StoreError, match="this search has"):
            other.restore(snapshot)
    with pytest.raises(StoreError, match="this search has"):
        search.strategy.restore(None)


@every_strategy
@pytest.mark.parametrize("change", [{"seed": 2}, {"seen": 3}, {"told": math.inf}], ids=str)
def test_a_refused_snapshot_leaves_a_search_that_was_told_nothing(
    name: str, change: dict[str, float]
) -> None:
    search = session(name, small_space(), smooth)
    search.run(30)
    with pytest.raises(StoreError):
        search.strategy.restore({**search.strategy.snapshot(), **change})
    assert search.strategy.snapshot() == session(name, small_space(), smooth).strategy.snapshot()


@every_strategy
@pytest.mark.parametrize("trials", [80, pytest.param(150, marks=pytest.mark.soak)])
def test_leaves_the_global_random_state_alone(name: str, trials: int) -> None:
    recorded = recording()
    random.seed(123)
    state = random.getstate()
    quiet = session(name, recorded.space, recorded.outcome).run(trials)
    assert random.getstate() == state
    random.seed(9)
    assert session(name, recorded.space, recorded.outcome).run(trials) == quiet


def test_proposals_are_the_same_in_every_process() -> None:
    """Sets and string hashes differ from process to process; no proposal may depend on them."""
    code = (
        "from search.landscapes import recording, session\n"
        f"for name in {STRATEGY_NAMES!r}:\n"
        "    run = session(name, recording().space, recording().outcome)\n"
        "    print([c.key for c in run.run(120)], run.strategy.snapshot())\n"
    )
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent)])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


@every_strategy
def test_views_tell_the_best_the_elites_and_the_generations(name: str) -> None:
    recorded = recording()
    search = session(name, recorded.space, recorded.outcome, population=10, elites=4)
    search.run(105)
    search.drain()
    ranked = sorted(
        (
            (recorded.outcome(c).fitness, -number)
            for number, c in enumerate(search.proposals)
            if recorded.outcome(c).ok
        ),
        reverse=True,
    )
    elites = search.strategy.elites
    assert [(e.fitness, -e.number) for e in elites] == ranked[:4]
    assert all(search.proposals[e.number] == e.configuration for e in elites)
    assert search.strategy.best == elites[0]
    assert search.strategy.told == 105
    assert search.strategy.generation == 10


@every_strategy
def test_knows_no_best_while_everything_fails(name: str) -> None:
    search = session(name, recording().space, all_fail)
    search.run(60)
    assert search.strategy.best is None
    assert list(search.strategy.elites) == []


@every_strategy
def test_a_configuration_measured_again_counts_with_its_newest_outcome(name: str) -> None:
    search = session(name, small_space(), smooth, lookahead=0)
    search.run(20)
    best = search.strategy.best
    assert best is not None
    worse = Outcome(OutcomeKind.OK, fitness=best.fitness - 5)
    search.strategy.tell(Trial(20, best.configuration, worse))
    assert search.strategy.best is not None
    assert search.strategy.best.configuration != best.configuration
    search.strategy.tell(Trial(21, best.configuration, all_fail(best.configuration)))
    assert best.configuration not in [e.configuration for e in search.strategy.elites]


@every_strategy
def test_avoids_what_was_told_from_elsewhere(name: str) -> None:
    space = small_space()
    search = session(name, space, smooth, lookahead=0)
    others = [c for i, c in enumerate(space.enumerate()) if i % 2]
    for number, configuration in enumerate(others):
        search.strategy.tell(Trial(number, configuration, smooth(configuration)))
    assert set(search.run(10_000)) == set(space.enumerate()) - set(others)
