"""Models with features and packages' attention: see benchmarks/feature_models.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from evotune.problems import create_problem
from tests.export.making import ROOT
from tests.export.runtime.packages import imported

Benchmarks = Callable[[str], ModuleType]
ABOUT = {"item": "bert-padded", "package": "p", "dtype": "float16"}


def cell(way: str, **found: Any) -> dict[str, Any]:
    return {**ABOUT, "way": way, **found}


@pytest.mark.parametrize("tiny", [False, True])
def test_the_cases_are_cases(benchmark_module: Benchmarks, tiny: bool) -> None:
    made = benchmark_module("feature_cases").cases(tiny)
    assert len(made) == 6
    for case in made:
        kind = case.space.removesuffix("_features").replace("_wgmma", "")
        problem = create_problem(kind, "float32" if tiny else "float16", ROOT)
        found = problem.case(case.shape, case.variant)
        assert problem.flops(found) > 0
        for space in (case.space, case.space_on_cpu):
            assert (ROOT / "search_spaces" / f"{space}.yaml").is_file()


def test_cells_that_are_measured_are_left_out(benchmark_module: Benchmarks) -> None:
    script = benchmark_module("feature_models")
    cells = [cell("graph", us={}), cell("eager", error="the time ran out")]
    assert script.left(cells, ABOUT, ["graph", "eager"]) == ["eager"]
    assert script.left(cells, {**ABOUT, "package": "other"}, ["graph"]) == ["graph"]


def test_the_table_has_speedups_and_faults(benchmark_module: Benchmarks) -> None:
    script = benchmark_module("feature_models")
    us = {"sdpa": 300.0, "none": 100.0, "package": 200.0}
    facts = {"us": us, "served": 12, "attention_calls": 12}
    lines = script.table([cell("graph", **facts, agrees=True)]).splitlines()
    assert lines[1].split()[-4:] == ["200.0", "1.50x", "2.00x", "12/12"]
    assert script.table([cell("graph", **facts, agrees=False)]).endswith("the output is off")
    assert script.table([cell("graph", error="it broke")]).endswith("it broke")


def test_an_item_needs_a_package_of_its_problem(
    benchmark_module: Benchmarks, tmp_path: Path
) -> None:
    script = benchmark_module("feature_models")
    (tmp_path / "dispatch.json").write_text('{"problem": {"name": "attention"}}')
    modules = {tmp_path: ModuleType("p")}
    assert list(script.pairs(["gpt-oss-sinks"], modules)) == [("gpt-oss-sinks", tmp_path)]
    with pytest.raises(SystemExit, match="bert-padded needs a package of attention_varlen"):
        list(script.pairs(["bert-padded"], modules))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of transformers and of calls that are not served
def test_tiny_models_are_served(benchmark_module: Benchmarks, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    script, maker = benchmark_module("feature_models"), benchmark_module("feature_packages")
    options = argparse.Namespace(folder=tmp_path, dtypes=["float32"], devices=["cpu"], tiny=True)
    options.items = list(script._ITEMS)
    record = maker.made(options, maker.Commands())
    assert not record["left"]
    with ExitStack() as stack, torch.no_grad():
        paths = [Path(path) for path in record["packages"].values()]
        modules = {path: stack.enter_context(imported(path)) for path in paths}
        for item, path in script.pairs(script._ITEMS, modules):
            trial = script.Trial(modules[path], item, True, 1)
            assert trial.about["agrees"], (item, trial.about)
            found = trial.cell("eager")
            assert found["served"] == trial.about["attention_calls"], item
            assert {"package", "none"} < found["us"].keys()
            assert "skipped" in trial.cell("graph")
