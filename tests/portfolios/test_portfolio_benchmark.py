"""The lists of cases that `benchmarks/lab/portfolio.py` takes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from evotune.problems.attention import Attention

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "lab"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "portfolio", raising=False)
    return importlib.import_module("portfolio")


@pytest.mark.parametrize("tiny", [False, True])
def test_cases_make_sense_and_random_ones_repeat(benchmark: ModuleType, tiny: bool) -> None:
    problem = Attention("float16")
    cases = benchmark.listed(tiny)
    made = []
    for case in cases:
        shape = {name: value for name, value in case.items() if name != "causal"}
        made.append(problem.case(shape, {"causal": case["causal"]}).label)
    assert len(set(made)) == len(made) == (8 if tiny else 60)
    drawn = benchmark.drawn(50, 1, tiny)
    assert drawn == benchmark.drawn(50, 1, tiny)
    assert all(case["batch"] * case["length"] <= 32_768 for case in drawn)
    if not tiny:
        assert {case["head_dim"] for case in drawn} == {64, 128}
        assert {case["batch"] for case in cases} <= set(range(1, 17))
        assert (min(case["seq_len"] for case in cases), max(case["seq_len"] for case in cases)) == (
            128,
            8192,
        )
