from __future__ import annotations

import subprocess
import sys

import pytest

from evotune.errors import UsageError
from evotune.run_options import SearchSettings
from evotune.search.catalog import STRATEGY_NAMES, create_strategy

from .landscapes import small_space


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_makes_every_strategy_it_names(name: str) -> None:
    assert create_strategy(name, small_space(), SearchSettings()).name == name


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    known = "evolution, exhaustive, local, nsga2, random"
    with pytest.raises(UsageError, match=f"'annealing'.*{known}"):
        create_strategy("annealing", small_space(), SearchSettings())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"population": 1, "elites": 1}, "population"),
        ({"elites": 0}, "elites"),
        ({"population": 8, "elites": 9}, "elites"),
        ({"lookahead": -1}, "lookahead"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: dict[str, int], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        SearchSettings(**arguments)


def test_settings_alone_do_not_import_deap() -> None:
    code = "import sys, evotune.search.strategy; sys.exit('deap' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
