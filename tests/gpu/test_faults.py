"""Kernels that fail on the GPU: each trial has its outcome, and the next trial is not harmed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evotune.trial import Json

pytestmark = pytest.mark.gpu

EVOTUNE = [sys.executable, "-m", "evotune"]
SPACE = Path(__file__).parent / "data/search_spaces/faulty.yaml"
EXPECTED = {
    "right": ("ok", ""),
    "illegal_address": ("illegal_access", "illegal"),
    "misaligned": ("illegal_access", "misaligned"),
    "endless": ("timeout", "killed"),
    "trap": ("launch_error", ""),
    "unwritten": ("nan", "never written"),
    "wrong": ("wrong_result", "off by"),
    "not_a_number": ("nan", "NaN"),
    "random": ("nondeterministic", "differ"),
    "out_of_bounds": ("out_of_bounds", "wrote outside out"),
    "changes_input": ("out_of_bounds", "changed its input q"),
    "compile_error": ("compile_error", "does not compile"),
    "too_many_threads": ("rejected", "block.x is 2048"),
    "too_much_shared": ("rejected", "shared"),
    "too_many_registers": ("resource_limit", "registers"),
    "device_oom": ("device_oom", "memory"),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    runs = ["--runs-dir", str(tmp_path_factory.mktemp("runs"))]
    subprocess.run(
        [*EVOTUNE, "run", str(SPACE), "--device", "cuda:0", *runs], check=True, timeout=500
    )
    report = subprocess.run(
        [*EVOTUNE, "report", "latest", "--format", "jsonl", *runs], check=True, capture_output=True
    )
    return [json.loads(line) for line in report.stdout.splitlines()]


@pytest.mark.parametrize("behaviour", EXPECTED)
def test_each_failure_is_named(trials: list[Json], behaviour: str) -> None:
    found = [t for t in trials if t["configuration"]["BEHAVIOUR"] == behaviour]
    kind, words = EXPECTED[behaviour]
    assert len(found) == 2  # the two block sizes
    for trial in found:
        assert trial["outcome"] == kind, trial["reason"]
        assert words in trial["reason"]


def test_a_right_kernel_has_its_figures_and_the_gpus_state(trials: list[Json]) -> None:
    (trial, _) = [t for t in trials if t["outcome"] == "ok"]
    assert trial["confirmed"]
    assert trial["resources"]["registers"] > 16
    measured = trial["measurements"][0]
    assert measured["time_us"] > 1.0
    assert measured["baseline"].startswith("sdpa:")
    assert {"sm_mhz", "power_w", "temperature_c", "throttled_by"} <= measured["state"].keys()
