from __future__ import annotations

import numpy as np
import pytest

from evotune.timing.paired import Interval, median_interval


def test_the_interval_holds_the_median_and_depends_on_the_samples_alone() -> None:
    samples = [5.0, 1.0, 4.0, 2.0, 3.0]
    interval = median_interval(samples)
    assert interval == median_interval(samples)
    assert interval.median == 3.0
    assert 1.0 <= interval.low <= 3.0 <= interval.high <= 5.0


def test_equal_samples_leave_no_doubt() -> None:
    assert median_interval([2.0] * 5) == Interval(2.0, 2.0, 2.0)
    assert median_interval([2.0] * 5).relative_half_width == 0.0


def test_no_samples_have_no_median() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@pytest.mark.parametrize("count", [5, 25])
@pytest.mark.parametrize("heavy_tail", [False, True], ids=["normal", "heavy tail"])
def test_the_interval_covers_the_true_median_as_often_as_it_says(
    count: int, heavy_tail: bool
) -> None:
    """95% is nominal: with five samples even their whole range covers only 93.75%."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        noise = rng.standard_t(1.5, count) if heavy_tail else rng.normal(size=count)
        interval = median_interval(1.2 + 0.01 * noise)
        covered += interval.low <= 1.2 <= interval.high
    assert 0.90 <= covered / 300 <= 0.985
