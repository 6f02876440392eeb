from __future__ import annotations

import numpy as np
import pytest

from evotune.search.gaussian_process import (
    Encoder,
    Posterior,
    default_kernel,
    fit_kernel,
    log_expected_improvement,
)
from evotune.space.search_space import Categorical, IntegerRange, OrderedParameter

ENCODER = Encoder(
    (
        IntegerRange("A", 0, 9),
        Categorical("B", ("x", "y", "z")),
        OrderedParameter("ONE", (7,)),
        OrderedParameter("C", (1, 2, 4, 8, 16)),
    )
)
KERNEL = default_kernel(ENCODER.axes)
RNG = np.random.default_rng(3)
ROWS = np.stack([RNG.integers(0, 10, 60), RNG.integers(0, 3, 60), RNG.integers(0, 5, 60)], axis=1)
ROWS = np.unique(ROWS, axis=0)
VALUES = np.sin(ROWS[:, 0] / 3) + (ROWS[:, 1] == 1) - 0.2 * ROWS[:, 2]


def test_appending_equals_knowing_from_the_start() -> None:
    """Rows appended one by one give the same as the textbook's formulas on all rows."""
    known, late, pool = ROWS[:20], ROWS[20:26], ROWS[26:]
    posterior = Posterior(KERNEL, known, VALUES[:20], pool)
    for row in late:
        posterior.append(row)
    centre = VALUES[:20].mean()
    rows = np.vstack([known, late])
    covariance = KERNEL.between(rows, rows) + KERNEL.noise * np.eye(len(rows))
    weights = np.linalg.solve(covariance, KERNEL.between(rows, pool))
    means = centre + weights.T @ (VALUES[:26] - centre)
    variances = 1 - (KERNEL.between(rows, pool) * weights).sum(axis=0)
    assert posterior.means(list(VALUES[20:26])) == pytest.approx(means)
    assert posterior.variance == pytest.approx(variances)


def test_many_trials_at_once_are_the_same_trials_bit_by_bit() -> None:
    """Otherwise a resumed search, which adds at once the trials that first came one by one, could
    break a tie in another way."""
    one_by_one, at_once, mixed = (
        Posterior(KERNEL, ROWS[:7], VALUES[:7], ROWS[45:]) for _ in range(3)
    )
    for row in ROWS[7:45]:
        one_by_one.append(row)
    at_once.extend(ROWS[7:45])
    mixed.extend(ROWS[7:8])
    mixed.extend(ROWS[8:44])
    mixed.append(ROWS[44])
    values = [None if i % 3 == 0 else float(value) for i, value in enumerate(VALUES[7:45])]
    for other in (at_once, mixed):
        assert (other.variance == one_by_one.variance).all()
        assert (other.means(values) == one_by_one.means(values)).all()


def test_a_pending_trial_narrows_its_surroundings_and_moves_no_mean() -> None:
    posterior = Posterior(KERNEL, ROWS[:20], VALUES[:20], ROWS[20:])
    means, variance = posterior.means([]), posterior.variance.copy()
    posterior.append(ROWS[20])
    assert posterior.means([None]) == pytest.approx(means)
    assert posterior.variance[0] < 0.2 * variance[0]
    assert (posterior.variance <= variance + 1e-12).all()


def test_truncating_undoes_appending_bit_by_bit() -> None:
    """Otherwise proposals that were pending once, and are no longer, could break a tie."""
    posterior = Posterior(KERNEL, ROWS[:20], VALUES[:20], ROWS[20:])
    posterior.extend(ROWS[20:29])
    before = posterior.variance.copy()
    posterior.extend(ROWS[29:32])
    posterior.truncate(9)
    assert (posterior.variance == before).all()
    assert posterior.appended == 9


def test_the_fit_finds_the_axis_that_matters_and_the_one_that_is_a_bag_of_values() -> None:
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(0, 20, 90) for _ in range(3)], axis=1)
    encoder = Encoder([IntegerRange(name, 0, 19) for name in "ABC"])
    bag = rng.normal(size=20)
    values = np.sin(rows[:, 0] / 6) + bag[rows[:, 1]]  # the third axis has no effect
    kernel, _ = fit_kernel(default_kernel(encoder.axes), encoder.axes, rows, values, rng)
    beside = [table[1] for table in kernel.tables]  # log correlation of adjacent values
    assert beside[0] > -0.2
    assert beside[1] < beside[0] - 0.2
    assert kernel.lengths[2] > kernel.lengths[1]


def test_expected_improvement_grows_with_mean_and_deviation() -> None:
    worth = log_expected_improvement(
        np.array([0.0, 0.5, 0.0, -60.0, -50.0]), np.array([1.0, 1.0, 2.0, 1.0, 1.0]), 1.0
    )
    assert worth[1] > worth[0]
    assert worth[2] > worth[0]
    assert worth[4] > worth[3]  # beyond where the closed form loses its digits


@pytest.mark.parametrize("z", [-40.0, -29.0, -6.0, -1.0, 0.0, 3.0])
def test_expected_improvement_is_the_integral_of_its_definition(z: float) -> None:
    """E[max(0, t + z)] of Student's t with 8 degrees of freedom, summed up numerically."""
    above = np.concatenate([[0.0], np.geomspace(1e-9, 1e5, 400_000)])  # f minus the best
    density = 0.386699 * (1 + (above - z) ** 2 / 8) ** -4.5
    expected = np.trapezoid(above * density, above)
    found = np.exp(log_expected_improvement(np.array([z]), np.array([1.0]), 0.0))
    assert found[0] == pytest.approx(expected, rel=0.02)
