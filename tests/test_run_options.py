"""Values of a run's options: replaced by a caller, kept in a store."""

from __future__ import annotations

from typing import Any

import pytest

from evotune.errors import UsageError
from evotune.run_options import RunOptions


def test_none_leaves_a_value_as_it_is() -> None:
    options = RunOptions(trials=7, minutes=2.0)
    assert options.replaced({"trials": None, "seed": 3}) == RunOptions(3, trials=7, minutes=2.0)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"trials": "5"}, "trials: expected `int`, got `str`"),
        ({"trials": 0}, "trials: expected `int` >= 1"),
        ({"minutes": -1.0}, "minutes: expected `float` > 0.0"),
        ({"seed": 1.5}, "seed: expected `int`, got `float`"),
        ({"elites": 99}, "elites must be between 1 and the population of 32, got 99"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as refused:
        RunOptions().replaced(given)
    assert str(refused.value) == line


def test_stored_options_come_back_and_damage_is_seen() -> None:
    options = RunOptions(strategy="local", speedup=2.0, starts=({"A": 1, "B": "x", "C": True},))
    assert RunOptions.from_json(options.to_json()) == options
    for damage in ({"seed": "x"}, {"trials": None}, {"elites": 0}, {"starts": 5}):
        with pytest.raises(ValueError, match=next(iter(damage)).rstrip("s")):
            RunOptions.from_json(options.to_json() | damage)
