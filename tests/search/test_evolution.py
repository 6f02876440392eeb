from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Sequence

import pytest

from evotune.errors import StoreError
from evotune.run_options import SearchSettings
from evotune.search.catalog import create_strategy
from evotune.search.evolution import Evolution
from evotune.search.strategy import Elite
from evotune.space.search_space import ExplicitSpace, OrderedParameter
from evotune.trial import Configuration, Json, Outcome, OutcomeKind, Trial

from .landscapes import Session, recording, session, small_space, smooth


def flat(configuration: Configuration) -> Outcome:
    return Outcome(OutcomeKind.OK, fitness=0.0)


def best_times_ms(name: str, evaluations: int, seeds: Sequence[int]) -> list[float]:
    recorded = recording()
    times = []
    for seed in seeds:
        strategy = create_strategy(name, recorded.space, SearchSettings(seed=seed))
        search = Session(strategy, recorded.outcome, lookahead=16)
        proposals = search.run(evaluations)
        times.append(min(recorded.times_ms.get(c, math.inf) for c in proposals))
    return times


@pytest.mark.parametrize("evaluations", [60, pytest.param(100, marks=pytest.mark.soak)])
def test_finds_faster_configurations_than_random_search(evaluations: int) -> None:
    seeds = range(6)
    optimum = recording().best_time_ms
    evolved = statistics.fmean(best_times_ms("evolution", evaluations, seeds))
    drawn = statistics.fmean(best_times_ms("random", evaluations, seeds))
    assert evolved - optimum < 0.5 * (drawn - optimum)


def test_starts_at_the_default_and_is_blind_until_the_first_model() -> None:
    space = small_space()
    search = session("evolution", space, smooth, lookahead=0)
    assert search.run(1) == [space.default()]
    other = session("evolution", space, flat, lookahead=0)
    assert other.run(3) == search.run(3)
    assert other.run(24) != search.run(24)


def test_blind_proposals_are_spread_out() -> None:
    """The first 16 of 1,000 places, asked for without outcomes, lie farther apart than samples."""
    axes = [OrderedParameter(name, tuple(range(10))) for name in "ABC"]
    places = itertools.product(range(10), repeat=3)
    space = ExplicitSpace(axes, [dict(zip("ABC", place, strict=True)) for place in places])

    def nearest(name: str, seed: int) -> float:
        strategy = create_strategy(name, space, SearchSettings(seed=seed))
        proposals = [tuple(c.values()) for c in Session(strategy, flat, lookahead=16).run(16)]
        return min(math.dist(a, b) for a, b in itertools.combinations(proposals, 2))

    assert statistics.fmean(nearest("evolution", seed) for seed in range(5)) > 1.5 * (
        statistics.fmean(nearest("random", seed) for seed in range(5))
    )


def test_elites_survive_worse_trials() -> None:
    recorded = recording()
    search = session("evolution", recorded.space, recorded.outcome, population=10, elites=4)
    search.run(60)
    search.drain()
    before = search.strategy.elites
    search.evaluate = lambda configuration: Outcome(OutcomeKind.OK, fitness=-1000.0)
    search.run(120)
    search.drain()
    assert search.strategy.elites == before


def test_avoids_the_neighbourhood_of_failures() -> None:
    """A third of the space fails: one block next to the best of the rest."""
    recorded = recording()

    def outcome(configuration: Configuration) -> Outcome:
        if int(configuration["tile_x"]) * int(configuration["tile_y"]) >= 6:
            return Outcome(OutcomeKind.LAUNCH_ERROR)
        time_ms = recorded.times_ms.get(configuration, 10.0)
        return Outcome(OutcomeKind.OK, fitness=-math.log(time_ms))

    failing = sum(not outcome(c).ok for c in recorded.space.enumerate()) / len(recorded.space)
    proposals = session("evolution", recorded.space, outcome, lookahead=0).run(150)[20:]
    share = sum(not outcome(c).ok for c in proposals) / len(proposals)
    assert failing > 0.3
    assert share < failing / 2


def test_pending_proposals_push_the_next_one_elsewhere() -> None:
    """With 16 in flight, proposals differ as if asked one by one: not as one hill's top 16."""
    recorded = recording()
    search = session("evolution", recorded.space, recorded.outcome, lookahead=16)
    search.run(80)
    burst = list(search.pending)[-12:]
    differing = [
        sum(first[name] != second[name] for name in first)
        for first, second in itertools.combinations(burst, 2)
    ]
    assert statistics.fmean(differing) > 2


def test_keeps_sampling_while_everything_fails() -> None:
    """While there is no success to search around, the search must still sample the whole space."""
    recorded = recording()
    search = session(
        "evolution", recorded.space, lambda c: Outcome(OutcomeKind.COMPILE_ERROR), lookahead=0
    )
    assert len({c["block_x"] for c in search.run(100)}) == 5


def test_works_around_a_single_success() -> None:
    recorded = recording()
    only = recorded.space.default()
    search = session(
        "evolution",
        recorded.space,
        lambda c: Outcome(OutcomeKind.OK, fitness=1.0) if c == only else Outcome(OutcomeKind.NAN),
        lookahead=1,
    )
    proposals = search.run(200)
    assert search.strategy.best == Elite(0, only, 1.0)
    assert set(recorded.space.neighbours(only)) <= set(proposals)


def test_a_worse_second_measurement_corrects_the_model() -> None:
    """The first value is dropped: a search restored without it makes the same next proposal."""
    space = small_space()
    search = session("evolution", space, smooth, lookahead=0)
    search.run(15)
    best = search.strategy.best
    assert best is not None
    search.strategy.tell(Trial(15, best.configuration, Outcome(OutcomeKind.WRONG_RESULT)))
    snapshot = search.strategy.snapshot()
    assert snapshot["learnt"]["trials"]["dropped"] == [best.number]
    answer = search.strategy.ask(16, ())
    restored = create_strategy("evolution", space, SearchSettings(0, 8, 3, 16))
    restored.restore(snapshot)
    assert restored.ask(16, ()) == answer


@pytest.mark.parametrize(
    "damage",
    [
        lambda learnt: learnt["kernels"].pop(),
        lambda learnt: learnt["kernels"][0][0].pop(),
        lambda learnt: learnt.update(kernels=[[["x"] * 4, ["x"] * 4, 0.1]] * 2),
        lambda learnt: learnt.pop("warped"),
        lambda learnt: learnt["trials"].update(fitness="", indices=""),
        lambda learnt: learnt.pop("trials"),
    ],
)
def test_a_damaged_snapshot_leaves_a_search_that_knows_nothing(
    damage: Callable[[dict[str, Json]], None],
) -> None:
    space = small_space()
    search = session("evolution", space, smooth)
    search.run(30)
    snapshot = json.loads(json.dumps(search.strategy.snapshot()))
    damage(snapshot["learnt"])
    with pytest.raises(StoreError, match="is damaged"):
        search.strategy.restore(snapshot)
    fresh = create_strategy("evolution", space, SearchSettings(0, 8, 3, 16))
    assert search.strategy.snapshot() == fresh.snapshot()
    assert search.strategy.ask(0, ()) == fresh.ask(0, ())


@pytest.mark.soak
def test_a_pool_that_is_made_late_has_the_same_candidates() -> None:
    """A strategy asked after every tell and one asked only at the end agree, also when a
    configuration was told for the first time, or again, after the pool was due."""
    recorded = recording()
    settings = SearchSettings(0, 8, 3, 0)
    prompt = Evolution(recorded.space, settings)
    trials: list[Trial] = []
    for number in range(99):
        configuration = prompt.ask(number, ())
        assert configuration is not None
        if number % 10 == 9:
            configuration = trials[number // 2].configuration
        trials.append(Trial(number, configuration, recorded.outcome(configuration)))
        prompt.tell(trials[-1])
        if number in (94, 95, 98):
            late = Evolution(recorded.space, settings)
            for trial in trials:
                late.tell(trial)
            assert late.ask(number + 1, ()) == prompt.ask(number + 1, ())
            pools = [strategy._guide._pool for strategy in (late, prompt)]
            assert len({tuple(pool.candidates) for pool in pools if pool is not None}) == 1
