"""Whole models with a package's attention: see benchmarks/lab/export_models.py."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from evotune.problems.attention import Attention
from tests.export.making import ROOT
from tests.export.runtime.packages import imported

Benchmarks = Callable[[str], ModuleType]
CELL = {"model": "bert-base", "dtype": "float16", "way": "graph", "agrees": True, "served": 12}
SERVED = {
    **{"bert-base": 2, "bert-large": 2, "gpt2": 2, "vit-large": 2},
    "whisper-large": 0,  # scales q itself: 1.0 is greater than any scale that was checked here
    **{"llama-2048": 2, "llama-8192": 2, "llama-decode": 0},
}


def cell(sdpa: float, unmasked: float, none: float, package: float, **changes: Any) -> Any:
    us = {"sdpa": sdpa, "unmasked": unmasked, "none": none, "package": package}
    return {**CELL, "attention_calls": 12, "us": us, **changes}


def test_the_bars_are_those_of_the_attention_and_of_the_whole_model(
    benchmark_module: Benchmarks,
) -> None:
    bars = benchmark_module("model_bars")
    assert bars.faults(cell(1931, 752, 625, 700)) == []
    assert bars.faults(cell(1931, 752, 625, 740)) == ["attention below 1.3x"]
    assert bars.faults(cell(1700, 752, 625, 700)) == ["below 2.5x of sdpa"]
    assert bars.faults(cell(1931, 690, 625, 720, model="llama-2048")) == ["slower than 0.98x"]
    assert bars.faults(cell(1931, 752, 625, 740, way="eager")) == []
    assert bars.faults(cell(1931, 752, 625, 700, agrees=False)) == ["the output is off"]
    assert bars.faults({**CELL, "error": "the time ran out"}) == ["the time ran out"]
    assert "12/12  ok" in bars.table([cell(1931, 752, 625, 700)])


def test_the_cases_of_the_models_are_cases() -> None:
    listed = yaml.safe_load((ROOT / "benchmarks" / "cases" / "models.yaml").read_text())
    cases = [
        Attention("float16").case(
            {name: value for name, value in each.items() if name != "causal"},
            {"causal": each["causal"]},
        )
        for each in listed
    ]
    assert len({case.label for case in cases}) == 8


def test_a_finished_run_of_the_packages_is_kept(
    benchmark_module: Benchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = benchmark_module("model_packages")
    options = argparse.Namespace(folder=tmp_path, tiny=True)
    search = script._tiny()[0]
    begun: list[Path] = []

    def run(space: Path) -> dict[str, Any]:
        begun.append(space)
        return {"status": 0, "run": "" if len(begun) == 1 else "kept"}

    monkeypatch.setattr(script, "_fabricated", run)
    commands = script.Commands()
    found = [script.searched(options, search, "float32", "cpu", commands) for _ in range(3)]
    assert [each["run"] for each in found] == ["", "kept", "kept"]
    assert len(begun) == 2  # one that failed is made again
    assert Attention("float32").case(search.shape, {"causal": False})
    over = script.Commands(minutes=0)
    assert script.searched(options, script._tiny()[1], "float32", "cpu", over)["run"] == ""


def test_only_the_named_runs_are_made(benchmark_module: Benchmarks) -> None:
    script = benchmark_module("model_packages")
    searches = script._tiny()
    assert script.chosen(searches, None) == searches
    assert script.chosen(searches, [searches[1].name]) == searches[1:2]
    with pytest.raises(SystemExit, match=f"no run other; there are: {searches[0].name}, "):
        script.chosen(searches, ["other", searches[0].name])


def test_commands_end_when_their_time_is_over(benchmark_module: Benchmarks) -> None:
    script = benchmark_module("model_packages")
    commands = script.Commands(minutes=0.3 / 60)
    assert commands.status([sys.executable, "-c", "import time; time.sleep(60)"]) is None
    assert commands.status([sys.executable, "-c", ""]) is None
    assert script.Commands().status(["sh", "-c", "exit 3"]) == 3


def test_a_model_ends_when_its_time_is_over_and_is_measured_again(
    benchmark_module: Benchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = benchmark_module("export_models")
    options = argparse.Namespace(rounds=1, compiler="eager", tiny=True)
    child = tmp_path / "child.py"
    cell = json.dumps({"model": "gpt2", "way": "graph", "us": {}})
    said = tmp_path / "said"
    child.write_text(
        f"import time\nprint({cell!r}, flush=True)\nopen({str(said)!r}, 'w').close()\n"
        "while True: time.sleep(60)\n"
    )

    class Late(subprocess.Popen[bytes]):
        """Its time is over as soon as the first cell is there."""

        def communicate(self, input: bytes | None = None, timeout: float | None = None) -> Any:
            if timeout is None:
                return super().communicate()
            while not said.exists():
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(script.subprocess, "Popen", Late)
    monkeypatch.setattr(script, "__file__", str(child))
    cells = script.measured(options, tmp_path, "gpt2", ["graph", "eager"], 0.5)
    late = {"model": "gpt2", "way": "eager", "error": "the time ran out"}
    assert cells == [json.loads(cell), late]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of transformers and of PyTorch's compiler
@pytest.mark.parametrize("name", SERVED)
def test_a_tiny_model_is_served(
    benchmark_module: Benchmarks, attention_cpu: Path, name: str
) -> None:
    pytest.importorskip("transformers")
    script = benchmark_module("export_models")
    options = argparse.Namespace(tiny=True, rounds=1, compiler="eager")
    torch._dynamo.reset()
    with imported(attention_cpu) as module, torch.no_grad():
        trial = script.Trial(module, name, options)
        about = trial.about()
        assert about["agrees"]
        assert (about["served"], about["attention_calls"]) == (SERVED[name], 2)
        for side in trial._sides.values():  # the reference is another model
            assert {parameter.dtype for parameter in side.parameters()} == {torch.float32}
        for way in ("eager", "compile"):
            assert trial.cell(way)["us"].keys() == {"sdpa", "unmasked", "none", "package"}
