"""`benchmarks/lab/attention_cuda.py` without a GPU: what its files keep, by name and type, and what
`--confirm` confirms."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from evotune.problems.problem import Case
from evotune.runs.setup import load_kernel_setup
from evotune.trial import Outcome, OutcomeKind
from evotune.workers.executor import BaselineReport, BaselineTiming
from tests.runs.runs import few_random_tests

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "lab"


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


@pytest.mark.parametrize(
    ("dtype", "baseline", "chosen"),
    [("float16", "", "sdpa:cudnn"), ("float16", "fa4", "fa4"), ("bfloat16", "fa4", "fa4")],
)
def test_a_champion_is_confirmed_in_the_type_and_against_the_baseline_that_are_asked_for(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: str, baseline: str, chosen: str
) -> None:
    timer = Timer()
    monkeypatch.setattr(
        benchmark,
        "load_kernel_setup",
        lambda path, device: load_kernel_setup(path, "h200", compile_only=True),
    )
    monkeypatch.setattr(benchmark, "outcome_of", lambda *_: Outcome(OutcomeKind.OK, fitness=0.0))
    monkeypatch.setattr(benchmark, "repeated", lambda run, proposal, outcome, **_: outcome)
    asked: list[str] = []
    monkeypatch.setattr(
        benchmark,
        "open_kernel_executor",
        lambda setup, folder: asked.append(setup.problem_spec.dtype) or timer,
    )
    record = {"configuration": {}, "trial": 3, "measurements": []}
    manner = benchmark.Manner(baseline, "blhd")
    with few_random_tests(10):
        found = benchmark.confirm(*jobs("mission full"), record, manner, dtype)
    assert (asked, found["dtype"], found["found_in"]) == ([dtype], dtype, "float16")
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
    options = argparse.Namespace(
        only=[], output=None, dtype="float16", baseline="", layout="blhd", heat=0.0
    )
    benchmark.confirm_all(jobs("scalar"), records, options)
    assert "takes contiguous tensors only" in capsys.readouterr().err


def test_a_second_call_keeps_what_the_file_says_of_the_first(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = {"outcome": "ok", "reason": "", "seconds": 1.0, "device": None, "measurements": []}
    monkeypatch.setattr(
        benchmark,
        "confirm",
        lambda job, record, manner, dtype: {"name": job.name, "dtype": dtype, **row},
    )
    output = tmp_path / "confirmed.json"
    records: dict[str, dict[str, object]] = {"mission full": {}, "large": {}}
    options = argparse.Namespace(
        only=["large"], output=output, dtype="float16", baseline="fa4", layout="blhd", heat=0.0
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
    options.only, options.dtype = ["large"], "bfloat16"
    del second["confirmed"][0]["dtype"]  # as before there were types
    output.write_text(json.dumps(second))
    benchmark.confirm_all(jobs("large", "mission full"), records, options)
    third = json.loads(output.read_text())["confirmed"]
    known = [(each["name"], each.get("dtype")) for each in third]
    assert known == [("large", None), ("mission full", "float16"), ("large", "bfloat16")]
    for other in (second, {"confirmed": []}):  # a file of before these options has none
        output.write_text(json.dumps(other))
        options.baseline = "flex"
        with pytest.raises(SystemExit, match="made with other options"):
            benchmark.confirm_all(jobs("large", "mission full"), records, options)


def record(name: str, stages: int, dtype: str = "") -> dict[str, Any]:
    """Records of before there were types have none."""
    known = {"name": name, "seed": 0, "configuration": {"STAGES": stages}}
    return known | ({"dtype": dtype} if dtype else {})


@pytest.fixture
def ladder(benchmark: ModuleType) -> ModuleType:
    return importlib.import_module("attention_cuda")


def test_a_record_replaces_the_one_of_the_same_name_and_type(
    ladder: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "attention.json"
    path.write_text(json.dumps({"jobs": [record("large", 1), record("1024", 1)]}))
    ladder.RecordFile(path).keep(record("large", 2, "bfloat16"))
    ladder.RecordFile(path).keep(record("large", 3, "float16"))
    ladder.RecordFile(path).keep(record("large", 4, "bfloat16"))
    kept = json.loads(path.read_text())["jobs"]
    other = record("large", 4, "bfloat16")
    assert kept == [record("large", 3, "float16"), record("1024", 1), other]
    assert ladder.load(path) == {"large": kept[0], "1024": kept[1]}
    assert ladder.load(path, "bfloat16") == {"large": other}
    assert ladder.RecordFile(path).nearest("bfloat16") == {"large": other, "1024": kept[1]}


def test_a_search_in_a_type_begins_with_the_other_types_champion_and_goes_on_after_a_failure(
    ladder: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "attention.json"
    path.write_text(json.dumps({"jobs": [record("large", 4)]}))
    asked = []

    def tune(space: Path, runs_dir: Path, *options: str) -> dict[str, Any]:
        document = yaml.safe_load(space.read_text())
        asked.append((document["problem"]["dtype"], document["default"].get("STAGES")))
        if len(asked) == 1:
            raise subprocess.CalledProcessError(1, ["evotune"])
        trial = {"number": 7, "rank": "1", "confirmed": True, "outcome": "ok", "finished_s": 9.0}
        trial |= {"speedup_low": 1.0, "resources": {}, "measurements": []}
        trial["configuration"] = {"STAGES": 2}
        environment = {"device": {"id": "0"}}
        return {"trials": [trial], "baseline": {}, "environment": environment}

    monkeypatch.setattr(ladder, "tune", tune)
    words = ["--only", "large", "head 128", "--dtype", "bfloat16", "--again", "-o", str(path)]
    monkeypatch.setattr(sys, "argv", ["attention_cuda.py", *words])
    ladder.main()
    assert [dtype for dtype, _ in asked] == ["bfloat16"] * 2
    assert asked[0][1] == 4
    assert "large, bfloat16: no champion" in capsys.readouterr().err
    kept = json.loads(path.read_text())["jobs"]
    assert [(each["name"], each.get("dtype")) for each in kept] == [
        ("large", None),
        ("head 128", "bfloat16"),
    ]


def test_the_champions_of_the_other_type_are_confirmed_where_a_type_has_none(
    ladder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "attention.json"
    both = [record("large", 1), record("1024", 1), record("1024", 2, "bfloat16")]
    path.write_text(json.dumps({"jobs": both}))
    found: dict[str, Any] = {}
    monkeypatch.setattr(ladder, "confirm_all", lambda jobs, records, options: found.update(records))
    words = ["--confirm", str(path), "--dtype", "bfloat16"]
    monkeypatch.setattr(sys, "argv", ["attention_cuda.py", *words])
    ladder.main()
    assert found == {"large": both[0], "1024": both[2]}
