"""At most K kernels of a matrix: against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evotune.portfolios import building
from evotune.portfolios.building import chosen_kernels, mean_speedup
from evotune.portfolios.matrix_store import Point
from tests.portfolios.made_up import point, score

SPEEDUPS = st.one_of(st.none(), st.just(0.0), st.floats(0.3, 4.0))


@st.composite
def matrices(draw: st.DrawFn) -> tuple[list[Point], int]:
    kernels, cases = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    points = [
        point(64 * (at + 1), weight=draw(st.floats(0.5, 5.0))).with_scores(
            [score(draw(SPEEDUPS)) for _ in range(kernels)]
        )
        for at in range(cases)
    ]
    return points, draw(st.integers(1, 4))


def best_by_hand(points: list[Point], most: int) -> float:
    """The greatest weighted geometric mean over all sets, without the module under test."""
    total = sum(p.weight for p in points)
    found = 1.0
    for count in range(most + 1):
        for kernels in itertools.combinations(range(len(points[0].scores)), count):
            product = 0.0
            for p in points:
                speedups = [1.0]
                for k in kernels:
                    known = p.scores[k]
                    if known is not None and known.won:
                        speedups.append(known.speedup)
                product += p.weight * math.log(max(speedups))
            found = max(found, math.exp(product / total))
    return found


@given(matrices())
def test_few_kernels_are_chosen_exactly(made: tuple[list[Point], int]) -> None:
    points, most = made
    chosen = chosen_kernels(points, most)
    assert len(chosen) <= most
    assert chosen == sorted(set(chosen))
    assert mean_speedup(points, chosen) == pytest.approx(best_by_hand(points, most))


@given(matrices())
def test_greedy_with_swaps_is_nearly_as_good(made: tuple[list[Point], int]) -> None:
    points, most = made
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "_MOST_SUBSETS", 0)
        chosen = chosen_kernels(points, most)
    assert len(chosen) <= most
    best = math.log(best_by_hand(points, most))
    # Greedy alone guarantees 1 - 1/e of it.
    assert math.log(mean_speedup(points, chosen)) >= (1 - 1 / math.e) * best - 1e-9


def test_swaps_leave_the_kernel_that_is_good_everywhere_and_best_nowhere() -> None:
    columns = ((1.5, 1.5, 1.5, 1.5), (2.0, 2.0, None, None), (None, None, 2.0, 2.0))
    points = [
        point(64 * (at + 1)).with_scores([score(column[at]) for column in columns])
        for at in range(4)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "_MOST_SUBSETS", 0)
        assert chosen_kernels(points, 2) == [1, 2]
    assert chosen_kernels(points, 1) == [0]


def test_kernels_that_win_nothing_are_not_chosen() -> None:
    points = [point(64).with_scores([score(0.9), score(1.2, low=0.95), score(0.0), None])]
    assert chosen_kernels(points, 3) == []
    assert mean_speedup(points, [0, 1, 2, 3]) == 1.0


def test_a_case_counts_by_its_weight() -> None:
    points = [
        point(64, weight=1).with_scores([score(3.0), score(1.0)]),
        point(128, weight=9).with_scores([score(1.0), score(1.5)]),
    ]
    assert chosen_kernels(points, 1) == [1]
