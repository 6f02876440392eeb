"""Random, exhaustive and local search: their own behaviour, beyond the conformance suite."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from evotune.space.search_space import ExplicitSpace, IntegerRange
from evotune.trial import Configuration, Outcome, OutcomeKind

from .landscapes import all_fail, recording, session, small_space, smooth


def line(length: int) -> ExplicitSpace:
    return ExplicitSpace([IntegerRange("X", 0, length - 1)], [{"X": x} for x in range(length)])


def test_random_search_draws_every_region_evenly() -> None:
    space = line(100)
    counts = Counter(
        int(configuration["X"]) // 25
        for seed in range(100)
        for configuration in session("random", space, all_fail, seed=seed).run(20)
    )
    assert all(420 < counts[quarter] < 580 for quarter in range(4))


def test_exhaustive_search_goes_in_the_order_of_the_space() -> None:
    space = small_space()
    assert session("exhaustive", space, smooth).run(10_000) == list(space.enumerate())


def test_exhaustive_search_starts_at_once_in_a_huge_space() -> None:
    class Endless(ExplicitSpace):
        def enumerate(self):  # type: ignore[no-untyped-def]
            return (Configuration({"X": x}) for x in range(10**12))

    space = Endless([IntegerRange("X", 0, 9)], [{"X": 0}])
    assert [c["X"] for c in session("exhaustive", space, all_fail).run(30)] == list(range(30))


def test_local_search_tries_the_neighbours_of_its_start_nearest_first() -> None:
    space = recording().space
    search = session("local", space, lambda c: Outcome(OutcomeKind.OK, fitness=0.0), lookahead=0)
    start = search.run(1)[0]
    neighbours = list(space.neighbours(start))
    assert search.run(1 + len(neighbours))[1:] == neighbours


def test_local_search_climbs_to_the_top_of_a_hill() -> None:
    hill = session(
        "local",
        line(1000),
        lambda c: Outcome(OutcomeKind.OK, fitness=-abs(int(c["X"]) - 500) / 100),
        lookahead=0,
    )
    start = int(hill.run(1)[0]["X"])
    # Both directions are tried at the start; from then on each step goes up.
    hill.run(1 + 2 * abs(start - 500) + 2)
    assert hill.strategy.best is not None
    assert hill.strategy.best.configuration["X"] == 500


def test_local_search_restarts_elsewhere_from_an_optimum() -> None:
    space = recording().space
    search = session("local", space, lambda c: Outcome(OutcomeKind.OK, fitness=0.0), lookahead=0)
    start = search.run(1)[0]
    around = {start, *space.neighbours(start)}
    proposals = search.run(len(around) + 1)
    assert proposals[-1] not in around
    assert list(islice(proposals, len(around))) == [start, *space.neighbours(start)]
