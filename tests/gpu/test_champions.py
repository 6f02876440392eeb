"""On a GPU only champions get eager times, the sanitizer's tools and many random tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evotune.backends.base.backend import TOOLS
from evotune.backends.cuda.discovery import open_profile
from evotune.backends.cuda.sanitizer import find_sanitizer
from evotune.trial import Json
from evotune.verify.champion_launches import WORDS
from evotune.workers.device_worker import open_session

pytestmark = pytest.mark.gpu

EVOTUNE = [sys.executable, "-m", "evotune"]
SPACE = Path(__file__).parent / "data/search_spaces/faulty.yaml"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run of the one right kernel of the faulty space, with its confirmation."""
    runs = ["--runs-dir", str(tmp_path_factory.mktemp("runs"))]
    command = ["run", str(SPACE), "--device", "cuda:0", "--trials", "1", *runs]
    subprocess.run([*EVOTUNE, *command], check=True, timeout=500)
    return runs


@pytest.fixture(scope="module")
def champion(runs: list[str]) -> Json:
    report = subprocess.run(
        [*EVOTUNE, "report", "latest", "--format", "jsonl", *runs], check=True, capture_output=True
    )
    (trial,) = [json.loads(line) for line in report.stdout.splitlines()]
    assert trial["confirmed"], trial["reason"]
    return trial


def test_an_eager_sampler_issues_every_call_and_waits_for_the_last() -> None:
    session = open_session(open_profile("cuda:0", compile_only=False))
    x = torch.zeros(1024, device=session.torch_device)

    def call() -> object:
        return x.add_(1.0)

    call()
    eager = session.eager_sampler([call] * 100)
    assert eager is not None
    eager.run()
    before = float(x[0])
    assert all(eager.time_us() > 0.0 for _ in range(5))
    assert float(x[0]) == before + 500


def test_a_champion_has_eager_times_of_both_sides(champion: Json) -> None:
    for measurement in champion["measurements"]:
        taken = measurement["cache"] == "warm"
        for figure in ("eager_us", "eager_baseline_us"):
            assert (measurement[figure] is not None) == taken
            assert not taken or 0.0 < measurement[figure] < 1e6


def test_a_champion_passed_a_hundred_random_tests_not_fewer_for_lack_of_time(
    champion: Json,
) -> None:
    """With strides there are tests of far tensors beside the hundred."""
    (check,) = [check for check in champion["checks"] if check["case"].endswith(" random tests")]
    assert int(check["case"].split()[0]) >= 100
    assert (check["status"], check["detail"]) == ("passed", "")


def test_a_champion_was_right_at_the_least_alignment_that_a_package_serves(
    champion: Json,
) -> None:
    (check,) = [check for check in champion["checks"] if check["case"].endswith(WORDS)]
    assert (check["status"], check["detail"]) == ("passed", "")


def test_the_sanitizers_tools_saw_the_champion_or_are_said_to_be_missing(champion: Json) -> None:
    found = {check["inputs"]: check for check in champion["checks"] if "sanit" in check["inputs"]}
    assert set(found) == {f"compute-sanitizer {tool}" for tool in TOOLS}
    expected = "passed" if find_sanitizer() else "skipped"
    assert {check["status"] for check in found.values()} == {expected}, found


def test_verify_repeats_the_gate_and_finds_what_is_wrong(runs: list[str]) -> None:
    leader = subprocess.run(
        [*EVOTUNE, "verify", "latest", "--format", "json", *runs], check=True, capture_output=True
    )
    (record,) = json.loads(leader.stdout)
    assert record["passed"]
    assert {check["status"] for check in record["checks"]} <= {"passed", "skipped"}
    values = {**record["configuration"], "BEHAVIOUR": "wrong"}
    command = ["verify", "latest", "--config", json.dumps(values), "--format", "json", *runs]
    wrong = subprocess.run([*EVOTUNE, *command], check=False, capture_output=True)
    assert wrong.returncode == 1
    assert json.loads(wrong.stdout)[0]["outcome"] == "wrong_result"
