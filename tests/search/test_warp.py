import math

import numpy as np
import pytest

from evotune.search.evolution import Guide
from evotune.search.folded import SeenConfigurations
from evotune.search.gaussian_process import Warp
from evotune.space.search_space import IntegerRange
from evotune.trial import Configuration

FITNESS = np.array([-9.0, -4.0, -2.0, -1.0, 0.0])


def test_the_better_half_stays_and_the_rest_is_drawn_together_in_order() -> None:
    warp = Warp.of_the_slower_half(FITNESS)
    warped = warp.all(FITNESS)
    assert warped[2:].tolist() == [-2.0, -1.0, 0.0]
    assert warped[1] == pytest.approx(-2 * (1 + math.log(2)))
    assert (np.diff(warped) > 0).all()
    assert warp(1.5) == 1.5  # better than all before


@pytest.mark.parametrize("warp", [Warp(), Warp.of_the_slower_half(np.array([-3.0, -1.0, -1.0]))])
def test_without_a_knee_nothing_changes(warp: Warp) -> None:
    assert warp.all(FITNESS).tolist() == FITNESS.tolist()
    assert warp.log_slope(FITNESS) == 0


def test_the_slope_is_the_derivative() -> None:
    warp = Warp.of_the_slower_half(FITNESS)
    step = 1e-6
    slopes = (warp.all(FITNESS + step) - warp.all(FITNESS - step)) / (2 * step)
    slopes[2] = 1.0  # at the knee
    assert warp.log_slope(FITNESS) == pytest.approx(float(np.log(slopes).sum()), abs=1e-5)


@pytest.mark.parametrize("has_tail", [False, True])
def test_the_data_say_whether_the_model_is_shown_warped_values(has_tail: bool) -> None:
    rng = np.random.default_rng(0)
    parameters = [IntegerRange(name, 0, 15) for name in "AB"]
    guide = Guide(
        parameters, 0, SeenConfigurations(), lambda elites, rng: [], parents=1, lookahead=16
    )
    for a, b in rng.integers(0, 16, (60, 2)).tolist():
        fitness = -0.02 * (a - 9) ** 2 - 0.01 * (b - 4) ** 2
        # Cliffs that no smooth function follows, on the slow side only.
        tail = 4 * rng.random() if has_tail and a < 8 else 0.0
        guide.learn(Configuration({"A": a, "B": b}), fitness - tail)
    assert guide.snapshot()["warped"] is has_tail
