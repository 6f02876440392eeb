"""Where searches go: cases that stand for others, and cases that are served badly."""

from __future__ import annotations

import math
import random

from evotune.portfolios.building import representatives
from evotune.portfolios.case_searches import SearchPlan, nearest_searched, worst_served
from evotune.portfolios.matrix_store import Point, distance
from tests.portfolios.made_up import point, scored

VARIANTS = ("causal", "layout")


def test_representatives_are_of_each_kind_and_repeat() -> None:
    points = [
        point(length, head_dim=head_dim)
        for head_dim in (64, 128)
        for length in (100, 110, 120, 4000, 4100, 4200)
    ]
    found = representatives(points, 4, 3, VARIANTS)
    assert found == representatives(points, 4, 3, VARIANTS)
    kinds = {(points[i].place.fixed["head_dim"], points[i].features["seq_len_q"]) for i in found}
    assert kinds == {(64, 110), (64, 4100), (128, 110), (128, 4100)}


def test_there_are_no_more_representatives_than_cases() -> None:
    points = [point(100), point(200), point(200, batch=1)]
    assert sorted(representatives(points, 8, 0)) in ([0, 1], [0, 2])


def test_many_cases_take_no_time() -> None:
    rng = random.Random(0)
    points = [point(rng.randint(64, 9000), batch=rng.randint(1, 16)) for _ in range(300)]
    found = representatives(points, 8, 0)
    assert len(set(found)) == 8
    best = cost(points, found)
    assert all(cost(points, rng.sample(range(300), 8)) > best for _ in range(20))


def cost(points: list[Point], medoids: list[int]) -> float:
    return sum(min(distance(point, points[i]) for i in medoids) for point in points)


def test_a_heavy_case_stands_for_its_neighbours() -> None:
    points = [point(100), point(200, weight=100), point(220)]
    assert representatives(points, 1, 0) == [1]


def test_the_next_search_goes_where_all_champions_serve_a_case_badly() -> None:
    points = scored(
        [point(n) for n in (128, 512, 2048, 8192)],
        lambda p: {128: 1.5, 512: 1.5, 2048: 1.45, 8192: 1.1}[p.features["seq_len_q"]],
    )
    searched = {points[0].label}
    assert worst_served(points, searched, VARIANTS) == points[3].label
    searched.add(points[3].label)  # its own champion reaches no more: nothing better is expected
    assert worst_served(points, searched, VARIANTS) is None
    badly = scored([*points[:1], point(512, weight=5), *points[2:]], lambda p: 1.2)
    assert worst_served(badly, {points[0].label}, VARIANTS) is None


def test_a_case_that_no_champion_can_run_comes_first() -> None:
    points = scored(
        [point(128), point(2048), point(128, head_dim=128)],
        lambda p: 1.5 if p.features["seq_len_q"] == 128 else 1.0,
    )
    found = worst_served(points, {points[0].label}, VARIANTS)
    assert found == points[2].label


def test_a_search_begins_with_the_nearest_one() -> None:
    others = [point(128), point(4096), point(512, head_dim=128)]
    assert nearest_searched(point(256), others) == others[0].label
    assert nearest_searched(point(256), [point(256)]) is None


def test_the_budget_is_shared() -> None:
    plan = SearchPlan(first=4, trials=60, minutes=10.0)
    assert plan.most == 6
    assert plan.options(0, 0) == {"champions": 1, "trials": 10, "minutes": 1.0}
    assert plan.options(5, 52)["trials"] == 8
    assert plan.has_more(5, 50, 100.0)
    assert not plan.has_more(6, 50, 100.0)
    assert not plan.has_more(5, 60, 100.0)
    assert not plan.has_more(5, 50, 361.0)
    assert SearchPlan(4, None, None).has_more(5, 10**6, math.inf)
