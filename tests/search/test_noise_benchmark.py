"""The rules by which `benchmarks/lab/search_noise.py` confirms champions."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from evotune.trial import Configuration

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "lab"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "search_noise", raising=False)
    return importlib.import_module("search_noise")


def test_every_rule_picks_the_faster_of_two(benchmark: ModuleType) -> None:
    fast, slow = Configuration({"A": 1}), Configuration({"A": 2})
    samples = {fast: np.linspace(0.9, 1.1, 32), slow: np.linspace(1.9, 2.1, 32)}
    for rule in benchmark.RULES.values():
        watch = benchmark.Paired(samples, 0)
        assert benchmark.pick(watch, rule, [slow, fast]) is fast


def test_rounds_go_on_beyond_60_where_noise_leaves_the_choice_open(benchmark: ModuleType) -> None:
    noisy = Configuration({"A": 1})
    watch = benchmark.Paired({noisy: np.array([0.2, 1.0, 5.0])}, 0)
    rounds = []
    for name in ("3, 60 rounds", "3, 240 rounds", "3, to 1%"):
        before = watch.taken
        watch.confirm(noisy, benchmark.RULES[name], 1.0)
        rounds.append(watch.taken - before)
    assert rounds[0] == 60 < min(rounds[1:])
