"""Random calls of packages: see benchmarks/export_random_calls.py."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.export.making import ROOT
from tests.export.runtime.packages import attention_package, description, imported

Benchmarks = Callable[[str], ModuleType]
SCRIPT = ROOT / "benchmarks" / "export_random_calls.py"


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """PyTorch warns of some kinds of tensors, and packages of misses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tallied(benchmark_module: Benchmarks, package: Path, calls: range) -> Any:
    script = benchmark_module("export_random_calls")
    tally = script.Tally()
    with imported(package) as module:
        for line in script.made(module, 0, calls):
            tally.add(line)
    return tally


def test_300_calls_are_right(benchmark_module: Benchmarks, attention_cpu: Path) -> None:
    tally = tallied(benchmark_module, attention_cpu, range(300))
    assert tally.calls == 300
    assert tally.findings == tally.crashes == []
    served = tally.verdicts["hook"]["within the limit of float64"]
    assert served > 50
    assert {"grad", "layout", "mask", "dtype", "dropout"} <= tally.misses.keys()


def with_argument(kind: str, value: Any) -> list[dict[str, Any]]:
    """The kernels of a package that pass another value to their kernel."""
    kernels: list[dict[str, Any]] = description("any")["kernels"]
    plan = kernels[0]["plan"]
    plan["arguments"] = [
        {**each, "value": value} if each["type"] == kind else each for each in plan["arguments"]
    ]
    return kernels


def test_a_wrong_kernel_is_found(benchmark_module: Benchmarks, tmp_path: Path) -> None:
    kernels = with_argument("float32", 0.3)
    package = attention_package(tmp_path, tmp_path, "wrong_scale", kernels=kernels)
    tally = tallied(benchmark_module, package, range(60))
    wrong = [verdict for finding in tally.findings for verdict in finding["wrong"].values()]
    assert wrong
    assert all(verdict.startswith("off by") for verdict in wrong)


@pytest.mark.parametrize(
    ("alone", "own"),
    [
        ([{"call": 3, "words": {}}, {"call": 3, "lost": "CUDA error"}], True),
        ([{"call": 3, "words": {}}, {"call": 3, "right": {}}], False),
        ([{"call": 3}], False),  # it cannot be drawn
    ],
)
def test_a_crash_is_sdpa_s_own_where_sdpa_alone_crashes(
    benchmark_module: Benchmarks,
    monkeypatch: pytest.MonkeyPatch,
    alone: list[dict[str, Any]],
    own: bool,
) -> None:
    script = benchmark_module("export_random_calls")
    first = [{"call": 2, "right": {}}, {"call": 3}, {"call": 3, "words": {"mask": "bool"}}]

    class Child:
        def __init__(self, command: Any, env: dict[str, str], **_: Any) -> None:
            self.lines = alone if env[script._PARENTS] == script._ALONE else first
            self.code = -11 if self.lines is first or len(alone) == 1 else 0

        def wait(self) -> int:
            return self.code

    def lines_of(child: Child) -> Iterator[bytes]:
        return (json.dumps(line).encode() for line in child.lines)

    monkeypatch.setattr(script.subprocess, "Popen", Child)
    monkeypatch.setattr(script, "_lines", lines_of)
    tally = script.Tally()
    options = argparse.Namespace(package=Path("package"), seed=0)
    assert script.child(options, 2, 9, tally) == 4
    crash = {"call": 3, "ended": "SIGSEGV", "words": {"mask": "bool"}}
    assert tally.crashes == ([] if own else [crash])
    assert tally.own_crashes == ([{**crash, "alone": "CUDA error"}] if own else [])


def test_a_lost_device_is_a_crash(benchmark_module: Benchmarks) -> None:
    tally = benchmark_module("export_random_calls").Tally()
    tally.add({"call": 3, "lost": "CUDA error"})
    assert [crash["call"] for crash in tally.crashes] == [3]


@pytest.mark.soak
def test_a_crash_is_a_finding_and_the_next_call_goes_on(tmp_path: Path) -> None:
    kernels = with_argument("int64", 0)
    kernels[0]["plan"]["arguments"][0] = {"type": "int64", "value": 0}  # q is null
    package = attention_package(tmp_path, tmp_path, "crashing", kernels=kernels)
    output = tmp_path / "found.json"
    words = [str(package), "--calls", "40", "-o", str(output)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    record = json.loads(output.read_text())
    assert {crash["ended"] for crash in record["crashes"]} == {"SIGSEGV"}
    assert record["calls"] + len(record["crashes"]) == 40


@pytest.mark.soak
def test_20_000_calls_are_right(attention_cpu: Path, tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    words = [str(attention_cpu), "--seed", "1", "-o", str(output)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, check=False)
    assert done.returncode == 0, output.read_text()
    assert json.loads(output.read_text())["calls"] == 20_000
