"""The CUDA examples other than attention, new kernels, and measurements after a search."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

EVOTUNE = [sys.executable, "-m", "evotune"]
_EXAMPLES = ["softmax", "rms-norm", "add-rms-norm", "add-rms-norm-fp8", "cross-entropy"]
_HOPPER = ["linear", "linear-gelu", "linear-skinny"]


def evotune(runs: Path, *arguments: str, codes: Sequence[int] = (0,)) -> str:
    done = subprocess.run(
        [*EVOTUNE, *arguments, "--runs-dir", str(runs)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random search of each example, with its confirmation."""
    folder = tmp_path_factory.mktemp("runs")
    import torch

    hopper = torch.cuda.get_device_capability()[0] == 9
    for space in _EXAMPLES + _HOPPER * hopper:
        options = (
            "--device",
            "cuda:0",
            "--strategy",
            "random",
            "--trials",
            "8",
            "--champions",
            "1",
        )
        evotune(folder, "run", space, *options)
    return folder


def run_of(runs: Path, space: str) -> str:
    """The run's folder is named after the time, in three parts, and the space."""
    found = [folder.name for folder in runs.iterdir() if folder.name.split("-", 3)[3] == space]
    if not found:
        pytest.skip(f"{space} needs another GPU")
    return found[0]


@pytest.mark.parametrize("space", _EXAMPLES + _HOPPER)
def test_random_configurations_pass_the_gate(runs: Path, space: str) -> None:
    lines = evotune(runs, "report", run_of(runs, space), "--format", "jsonl").splitlines()
    trials = [json.loads(line) for line in lines]
    assert len(trials) == 8
    wrong = [t for t in trials if t["outcome"] not in ("ok", "resource_limit")]
    assert not wrong, [(t["outcome"], t["reason"], t["configuration"]) for t in wrong]
    assert any(t["confirmed"] for t in trials)


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_the_first_run_of_a_new_kernel_wins(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if language == "triton":
        pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    subprocess.run([*EVOTUNE, "init", "mine", "--language", language], check=True, timeout=60)
    options = ("--device", "cuda:0", "--trials", "4", "--champions", "1", "--trust")
    evotune(tmp_path, "run", "mine/space.yaml", *options)
    table = json.loads(evotune(tmp_path, "report", "latest", "--format", "json"))
    confirmed = [t for t in table["trials"] if t["confirmed"]]
    assert max(t["speedup_low"] for t in confirmed) > 1.0, confirmed


@pytest.mark.parametrize("space", ["softmax", "add-rms-norm"])
def test_ablation_measures_the_champion_against_itself_and_its_neighbours(
    runs: Path, space: str
) -> None:
    itself, *rows = json.loads(evotune(runs, "ablate", run_of(runs, space), "--format", "json"))
    assert (itself["outcome"], itself["same_code"]) == ("ok", True)
    assert 0.9 < itself["ratio"] < 1.1  # about 1; the margin is wide: this does not measure noise
    assert {row["outcome"] for row in rows} <= {"ok", "resource_limit", "rejected"}
    assert all((row["ratio"] is None) == (row["outcome"] != "ok") for row in rows)
    assert any(row["outcome"] == "ok" and not row["same_code"] for row in rows)
    page = evotune(runs, "report", run_of(runs, space), "--format", "html")
    assert '"ablation":{' in page


def test_two_configurations_are_measured_again_in_turn(runs: Path) -> None:
    run = run_of(runs, "softmax")
    table = json.loads(evotune(runs, "report", run, "--format", "json"))
    ok = [t["number"] for t in table["trials"] if t["outcome"] == "ok" and t["speedup"]]
    first, second = f"{run}:{ok[0]}", f"{run}:{ok[-1]}"
    options = ("--remeasure", "--format", "json")
    there = json.loads(evotune(runs, "compare", first, second, *options))
    back = json.loads(evotune(runs, "compare", second, first, *options))
    assert there["basis"] == back["basis"] == "paired"
    assert there["ratio_low"] <= there["ratio"] <= there["ratio_high"]
    assert len(there["cases"]) == 2
    assert 0.8 < there["ratio"] * back["ratio"] < 1.25  # each is the other's reciprocal


def test_a_comparison_fails_where_the_second_is_slower_than_allowed(runs: Path) -> None:
    run = run_of(runs, "softmax")
    table = json.loads(evotune(runs, "report", run, "--format", "json"))
    timed = sorted(
        (t["speedup"], t["number"])
        for t in table["trials"]
        if t["outcome"] == "ok" and t["speedup"]
    )
    slowest, fastest = timed[0][1], timed[-1][1]
    command = ("compare", f"{run}:{fastest}", f"{run}:{slowest}", "--remeasure")
    evotune(runs, *command, "--fail-if", "median>900%")
    if timed[-1][0] > 1.5 * timed[0][0]:
        evotune(runs, *command, "--fail-if", "median>10%", codes=(1,))
