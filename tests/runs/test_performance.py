"""The published score against values worked out by hand."""

from __future__ import annotations

import pytest

from evotune.errors import UsageError
from evotune.runs.replay import PerformanceScale

# Ten times, worst first: 10 … 1. Median 5.5, optimum 1, target 1 + 4.5 * 0.05 = 1.225, which only
# the last one (index 9) meets: ceil(9 / (11 - 9)) = 5 evaluations.
TEN = [float(t) for t in range(1, 11)]


def test_the_budget_and_the_baseline_are_those_worked_out_by_hand() -> None:
    scale = PerformanceScale(TEN)
    assert (scale.optimum, scale.median) == (1.0, 5.5)
    assert scale.target == pytest.approx(1.225)
    assert scale.budget == 5
    # Index round(11 m / (m + 1)): 5.5 -> 6 (to even), 7.33 -> 7, 8.25 -> 8, 8.8 -> 9, 9.17 -> 9.
    assert scale.baseline(5).tolist() == [4.0, 3.0, 2.0, 1.0, 1.0]


def test_the_score_is_the_one_worked_out_by_hand() -> None:
    scale = PerformanceScale(TEN)
    # (4-7)/3, then (3-2)/2, then (2-2)/1; random is at the optimum from the fourth on.
    assert scale.score([7.0, 2.0, 3.0], evaluations=3) == pytest.approx((-1 + 0.5 + 0) / 3)
    assert scale.score([7.0, 2.0, 3.0, 1.0, 9.0]) == pytest.approx((-1 + 0.5 + 0 + 1 + 1) / 5)
    assert scale.score([1.0]) == 1.0
    assert scale.score([4.0, 3.0, 2.0], evaluations=3) == 0.0


def test_failures_cost_evaluations_and_start_at_the_median() -> None:
    scale = PerformanceScale(TEN)
    # Median 5.5 while nothing is valid: (4-5.5)/3, (3-5.5)/2, then (2-1)/1.
    assert scale.score([None, None, 1.0], evaluations=3) == pytest.approx((-0.5 - 1.25 + 1) / 3)


def test_a_run_that_ends_early_keeps_its_best() -> None:
    scale = PerformanceScale(TEN)
    assert scale.score([2.0], evaluations=3) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)


def test_a_run_ends_below_random_when_its_best_is_worse_than_random_searchs() -> None:
    scale = PerformanceScale(TEN)
    assert scale.ends_below_random([9.0, 2.5, 3.0], evaluations=3)
    assert not scale.ends_below_random([9.0, 2.0, 3.0], evaluations=3)
    assert not scale.ends_below_random([9.0, 1.0])


def test_a_large_space_is_capped() -> None:
    times = [1.0, *(2.0 + i / 1e5 for i in range(20_000))]
    assert PerformanceScale(times).budget == 700


def test_a_space_of_one_time_has_nothing_to_win() -> None:
    scale = PerformanceScale([3.0])
    assert scale.budget == 1
    assert scale.score([3.0]) == 1.0


def test_refuses_a_space_without_times() -> None:
    with pytest.raises(UsageError, match="nothing to score"):
        PerformanceScale([])
