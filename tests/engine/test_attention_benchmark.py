"""The file that `benchmarks/attention_cuda.py --confirm` writes."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evotune.engine.setup import load_kernel_setup
from evotune.execute.executor import BaselineReport, BaselineTiming
from evotune.problems.problem import Case
from evotune.trial import Outcome, OutcomeKind

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Timer:
    """Stands for the executor: it times SDPA, and the libraries that it is asked for."""

    def __init__(self) -> None:
        self.baselines: dict[str, str] = {}

    def open_devices(self) -> None:
        pass

    def close(self) -> None:
        pass

    def time_baselines(self, cases: Sequence[Case], libraries: Sequence[str]) -> BaselineReport:
        times = {"sdpa:cudnn": 1.0, **dict.fromkeys(libraries, 2.0)}
        timings = (
            BaselineTiming(case.label, name, time_us, passed=True)
            for case in cases
            for name, time_us in times.items()
        )
        return BaselineReport(tuple(timings), 0.0)


@pytest.mark.parametrize(("baseline", "chosen"), [("", "sdpa:cudnn"), ("fa4", "fa4")])
def test_a_champion_is_confirmed_against_the_baseline_that_is_asked_for(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, baseline: str, chosen: str
) -> None:
    timer = Timer()
    monkeypatch.setattr(
        benchmark,
        "load_kernel_setup",
        lambda path, device: load_kernel_setup(path, "h200", compile_only=True),
    )
    monkeypatch.setattr(benchmark, "open_kernel_executor", lambda setup, folder: timer)
    monkeypatch.setattr(benchmark, "outcome_of", lambda *_: Outcome(OutcomeKind.OK, fitness=0.0))
    monkeypatch.setattr(benchmark, "repeated", lambda run, proposal, outcome, **_: outcome)
    record = {"configuration": {}, "trial": 3, "measurements": []}
    manner = benchmark.Manner(baseline, "blhd")
    benchmark.confirm(*jobs("mission full"), record, manner)
    assert set(timer.baselines.values()) == {chosen}
    assert "(1,8,512,64,blhd) full" in timer.baselines


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("attention_cuda", "attention_confirmations"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("attention_confirmations")


def jobs(*names: str) -> list[Any]:
    by_name = importlib.import_module("attention_cuda").JOBS_BY_NAME
    return [by_name[name] for name in names]


def test_a_champion_that_takes_contiguous_tensors_alone_is_left_out(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        benchmark,
        "load_kernel_setup",
        lambda path, device: load_kernel_setup(path, "h200", compile_only=True),
    )
    records = {"scalar": {"configuration": {}, "trial": 3, "measurements": []}}
    options = argparse.Namespace(only=[], output=None, baseline="", layout="blhd", heat=0.0)
    benchmark.confirm_all(jobs("scalar"), records, options)
    assert "takes contiguous tensors only" in capsys.readouterr().err


def test_a_second_call_keeps_what_the_file_says_of_the_first(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = {"outcome": "ok", "reason": "", "seconds": 1.0, "device": None, "measurements": []}
    monkeypatch.setattr(benchmark, "confirm", lambda job, *_: {"name": job.name, **row})
    output = tmp_path / "confirmed.json"
    records: dict[str, dict[str, object]] = {"mission full": {}, "large": {}}
    options = argparse.Namespace(
        only=["large"], output=output, baseline="fa4", layout="blhd", heat=0.0
    )
    benchmark.confirm_all(jobs("large", "mission full"), records, options)
    first = json.loads(output.read_text())
    assert {"command", "date", "torch", "manner"} <= first.keys()
    output.write_text(json.dumps({**first, "date": "then", "note": "8 cores"}))
    options.only = []
    benchmark.confirm_all(jobs("large", "mission full"), records, options)
    second = json.loads(output.read_text())
    assert (second["date"], second["note"]) == ("then", "8 cores")
    assert [each["name"] for each in second["confirmed"]] == ["large", "mission full"]
    for other in (second, {"confirmed": []}):  # a file of before these options has none
        output.write_text(json.dumps(other))
        options.baseline = "flex"
        with pytest.raises(SystemExit, match="made with other options"):
            benchmark.confirm_all(jobs("large", "mission full"), records, options)
