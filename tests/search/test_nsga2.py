from __future__ import annotations

import itertools
import math
import statistics

import pytest

from evotune.errors import UsageError
from evotune.run_options import SearchSettings
from evotune.search.catalog import create_strategy
from evotune.trial import Check, Configuration, Outcome, OutcomeKind, objective_values

from .landscapes import Session, recording

OBJECTIVES = ("speedup", "error")


def outcome(share: float | None, speedup: float = 1.0) -> Outcome:
    checks = () if share is None else (Check("c", "normal", "passed", share, 1.0),)
    return Outcome(OutcomeKind.OK, fitness=math.log(speedup), checks=checks)


def contradictory(configuration: Configuration) -> Outcome:
    """The recorded time, and an error that falls as the tile and the block grow."""
    time_ms = recording().times_ms.get(configuration)
    if time_ms is None:
        return Outcome(OutcomeKind.LAUNCH_ERROR)
    places = [
        parameter.index(configuration[parameter.name]) / (parameter.cardinality - 1)
        for parameter in recording().space.parameters[:3]
    ]
    return outcome(1 - sum(places) / 4, 1 / time_ms)


def volume(strategy: str, seed: int) -> float:
    """The area that a search's front dominates: error shares up to 1, ln(speedup) from -5."""
    settings = SearchSettings(seed, population=20, objectives=OBJECTIVES)
    search = Session(create_strategy(strategy, recording().space, settings), contradictory)
    found = [o for c in search.run(150) if (o := contradictory(c)).ok]
    points = sorted((objective_values(o, OBJECTIVES) for o in found), reverse=True)
    total, covered = 0.0, -1.0
    for fitness, accuracy in points:
        if accuracy > covered:
            total += (accuracy - covered) * max(0.0, fitness + 5)
            covered = accuracy
    return total


def test_finds_a_larger_front_than_random_search_and_one_for_speed_alone() -> None:
    found, drawn, fast = (
        statistics.fmean(volume(name, seed) for seed in range(3))
        for name in ("nsga2", "random", "local")
    )
    assert found > drawn
    assert found > fast


def test_parents_are_the_least_dominated_and_least_crowded() -> None:
    members = list(itertools.islice(recording().space.enumerate(), 12))
    # Six on a line from accurate to fast, one nearly equal to one of them, and five dominated ones.
    figures = [(1.0 + i, 0.1 + 0.1 * i) for i in range(6)]
    figures += [(2.0, 0.2001), *((0.5, 0.8 + 0.01 * i) for i in range(5))]
    given = {c: outcome(e, s) for c, (s, e) in zip(members, figures, strict=True)}
    settings = SearchSettings(0, population=6, elites=1, objectives=OBJECTIVES)
    strategy = create_strategy("nsga2", recording().space, settings)
    search = Session(strategy, lambda c: given[c])
    search.proposals = members
    search.pending.extend(members)
    search.drain()
    kept = [tuple(configuration.values()) for configuration, _ in strategy.snapshot()["learnt"]]
    assert sorted(kept) == sorted(tuple(c.values()) for c in members[:6])


def test_an_objective_of_an_outcome() -> None:
    assert objective_values(outcome(0.25, 2.0), OBJECTIVES) == (math.log(2), -0.25)
    # No error was measured: the worst value.
    assert objective_values(outcome(None), ("error",)) == (-1.0,)
    skipped = Check("c", "normal", "skipped", 5.0, 1.0)
    assert objective_values(Outcome(OutcomeKind.OK, 0.0, checks=(skipped,)), ("error",)) == (-1.0,)


def test_unknown_objectives_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown objective 'beauty'; there are speedup, error"):
        SearchSettings(objectives=("speedup", "beauty"))
