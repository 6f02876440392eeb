from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest

from evotune.search.catalog import create_strategy
from evotune.search.strategy import Elite, SearchSettings
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

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


@pytest.mark.parametrize("evaluations", [100, 200])
def test_finds_faster_configurations_than_random_search(evaluations: int) -> None:
    seeds = range(20)
    optimum = recording().best_time_ms
    evolved = statistics.fmean(best_times_ms("evolution", evaluations, seeds))
    drawn = statistics.fmean(best_times_ms("random", evaluations, seeds))
    assert evolved - optimum < 0.5 * (drawn - optimum)


def test_starts_at_the_default_then_samples_half_a_generation() -> None:
    space = small_space()
    search = session("evolution", space, smooth, population=16, lookahead=0)
    assert search.run(1) == [space.default()]
    other = session("evolution", space, flat, population=16, lookahead=0)
    assert other.run(8) == search.run(8)  # blind to outcomes so far
    assert other.run(24) != search.run(24)


def test_elites_survive_generations_of_worse_children() -> None:
    recorded = recording()
    search = session("evolution", recorded.space, recorded.outcome, population=10, elites=4)
    search.run(60)
    search.drain()
    before = search.strategy.elites
    search.evaluate = lambda configuration: Outcome(OutcomeKind.OK, fitness=-1000.0)
    search.run(160)
    search.drain()
    assert search.strategy.elites == before
    parents = {number for number, _, _ in search.strategy.snapshot()["learnt"]}
    assert {elite.number for elite in before} <= parents


def test_failures_never_breed() -> None:
    recorded = recording()
    search = session("evolution", recorded.space, recorded.outcome, lookahead=0)
    for count in range(1, 200):
        search.run(count)
        for number, fitness, values in search.strategy.snapshot()["learnt"]:
            configuration = Configuration(dict(zip(recorded.space.default(), values, strict=True)))
            assert recorded.outcome(configuration).fitness == fitness
            assert search.proposals[number] == configuration


def test_the_best_are_the_parents_after_a_generation() -> None:
    recorded = recording()
    search = session("evolution", recorded.space, recorded.outcome, population=20, elites=5)
    search.run(80)
    search.drain()
    learnt = search.strategy.snapshot()["learnt"]
    times_ms = sorted(recorded.times_ms.get(c, math.inf) for c in search.proposals)
    assert [fitness for _, fitness, _ in learnt] == [-math.log(time) for time in times_ms[:5]]


def test_the_logbook_counts_failures_and_describes_each_generation() -> None:
    recorded = recording()
    search = session("evolution", recorded.space, recorded.outcome, population=10)
    search.run(30)
    search.drain()
    for generation, record in enumerate(search.strategy.logbook):
        brood = search.proposals[10 * generation : 10 * generation + 10]
        fitness = [f for c in brood if (f := recorded.outcome(c).fitness) is not None]
        assert record["failures"] == 10 - len(fitness)
        assert record["evaluations"] == 10 * generation + 10
        assert record["mean"] == pytest.approx(statistics.fmean(fitness))
        assert record["top"] == max(fitness)
        assert record["worst"] == min(fitness)


def test_keeps_sampling_while_everything_fails() -> None:
    """A failing start must not shrink the search to the neighbourhood of nothing."""
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


def test_a_worse_second_measurement_stops_a_lucky_one_from_breeding() -> None:
    search = session("evolution", small_space(), smooth, lookahead=0)
    search.run(20)
    best = search.strategy.best
    assert best is not None
    search.strategy.tell(Trial(20, best.configuration, Outcome(OutcomeKind.WRONG_RESULT)))
    values = list(best.configuration.values())
    assert values not in [genome for _, _, genome in search.strategy.snapshot()["learnt"]]
