"""benchmarks/lab/attention_ragged.py without a GPU: what is run, what is kept, and when it ends."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from evotune.runs.setup import load_kernel_setup

BenchmarkModule = Callable[[str], ModuleType]


def report_of(configuration: dict[str, Any], baseline: str) -> dict[str, Any]:
    """As `evotune report --format json` has it, as far as the benchmark reads it."""
    measurement = {"baseline": baseline, "baseline_us": 20.0, "time_us": 10.0, "cache": "warm"}
    measurement |= {"speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1}
    trial = {"number": 3, "rank": "1", "confirmed": True, "outcome": "ok", "speedup_low": 1.9}
    trial |= {"configuration": configuration, "resources": {}, "measurements": [measurement]}
    environment = {"command": "", "device": {"id": "cuda:0", "name": "H200"}}
    copied = {"copy_gbps": 4000.0, "timings": []}
    return {"trials": [trial], "baseline": copied, "environment": environment}


@pytest.fixture
def called(benchmark_module: BenchmarkModule, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The baselines of the runs that were made; none of them runs anything."""
    found: list[str] = []

    def tune(path: Path, runs_dir: Path, *options: str) -> dict[str, Any]:
        space = yaml.safe_load(path.read_text())
        baseline = space["baseline"]
        found.append(baseline)
        if baseline == "fa4":
            raise subprocess.CalledProcessError(2, ["evotune"])
        chosen = {"BLOCK_M": 16} if baseline == "sdpa:best" else space["default"]
        return report_of(chosen, baseline)

    monkeypatch.setattr(benchmark_module("attention_ragged"), "tune", tune)
    return found


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_each_search_begins_with_a_configuration_that_its_shape_allows(
    benchmark_module: BenchmarkModule, tmp_path: Path, dtype: str
) -> None:
    module, tuning = benchmark_module("attention_ragged"), benchmark_module("tuning")
    for job in module.JOBS:
        problem = {"dtype": dtype, "shapes": [job.shape], "held_out": []}
        problem["variants"] = [{"causal": job.causal}]
        first = {"default": {**tuning.shipped(job.space)["default"], **job.start}}
        path = tuning.derive(job.space, {"problem": problem, **first}, tmp_path / "space.yaml")
        setup = load_kernel_setup(path, "h100", compile_only=True)
        assert not setup.planner.proposal(0, setup.space.default()).rejection, job.name
    sizes = {job.shape["page_size"] for job in module.JOBS if "page_size" in job.shape}
    assert sizes == {1, 16, 64, 256}


def test_a_campaign_goes_on_where_it_was_and_compares_with_libraries(
    benchmark_module: BenchmarkModule, called: list[str], tmp_path: Path
) -> None:
    module, path = benchmark_module("attention_ragged"), tmp_path / "ragged.json"
    jobs = module.JOBS[:2]

    def go_on(against: tuple[str, ...], deadline: float = math.inf) -> list[str]:
        called.clear()
        campaign = module.Campaign("float16", 0, None, 1.0, against)
        module.run_jobs(jobs, campaign, module.Records(path), deadline, again=False)
        return list(called)

    assert go_on((), time.monotonic() - 1) == []
    assert go_on(()) == ["sdpa:best"] * 2
    assert go_on(("flashinfer", "fa4")) == ["flashinfer", "fa4"] * 2
    assert go_on(("flashinfer", "fa4")) == []
    record = json.loads(path.read_text())["jobs"][0]
    assert record["libraries"]["fa4"]["reason"] == "exit code 2"
    assert record["libraries"]["flashinfer"]["measurements"][0]["baseline"] == "flashinfer"
    lines = module.table(module.Records(path).all)
    assert len(lines) == 2 + 2 * 2
    assert "flashinfer 20.00 | 10.00 | 2.00× [1.90, 2.10]" in lines[3]
    assert module.left(module.JOBS[2], module.Campaign("float16", 0, None, 1.0, ("fa4",)),
                       module.Records(path)) == ["search", "fa4"]  # fmt: skip


def test_the_command_and_the_note_of_a_file_outlive_new_records(
    benchmark_module: BenchmarkModule, tmp_path: Path
) -> None:
    said = {"command": "by hand", "note": "two cards"}
    record = {"name": "a job", "dtype": "float16", "seed": 0, "rung": "wgmma"}
    files = {
        "attention_ragged": lambda module, path: module.Records(path),
        "attention_features": lambda module, path: module.RecordFile(path, 0),
        "attention_cuda": lambda module, path: module.RecordFile(path),
    }
    for name, opened in files.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**said, "jobs": []}))
        opened(benchmark_module(name), path).keep(record)
        assert json.loads(path.read_text()) == {**said, "jobs": [record]}, name
        new = tmp_path / f"new_{name}.json"
        opened(benchmark_module(name), new).keep(record)
        assert json.loads(new.read_text())["command"].startswith(f"python benchmarks/lab/{name}.py")
