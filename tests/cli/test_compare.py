from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from report.runs import failed, make_run, ok, recorded
from timing.test_processes import outcome as timed

from evotune.cli.explain_commands import parse_condition
from evotune.errors import UsageError
from evotune.timing.processes import combined
from evotune.trial import OutcomeKind

from .conftest import Invoke


@pytest.fixture
def two(tmp_path: Path) -> None:
    """`a`: champion trial 1 at 2.0x; `b`: champion trial 0 at 1.9x, another torch."""
    runs = tmp_path / "runs"
    make_run(
        runs,
        [ok(1.0), ok(2.0)],
        name="a",
        meta={"default": {"BLOCK_M": 16, "UNROLL": 0, "PACK": True}},
    )
    environment = json.dumps({"packages": {"torch": "3.0"}})
    make_run(runs, [ok(1.9), failed(OutcomeKind.NAN)], name="b", environment=environment)


def test_what_differs_and_the_ratio_with_the_widest_interval_it_may_have(
    invoke: Invoke, two: None
) -> None:
    result = invoke("compare", "a", "b", "--format", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["first"], found["second"], found["basis"]) == ("a:1", "b:0", "baseline")
    assert ["torch", "2.9.0", "3.0"] in found["differences"]
    assert ["UNROLL", "1", "0"] in found["differences"]
    assert found["ratio"] == pytest.approx(0.95)
    assert found["ratio_low"] == pytest.approx(0.95 * 0.99 / 1.01)
    assert found["ratio_high"] == pytest.approx(0.95 * 1.01 / 0.99)
    assert found["slowdowns"]["median"] == pytest.approx(1 / 0.95 - 1)
    assert "paired" not in invoke("compare", "a", "b").stdout


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (["median>3%"], 1),
        (["median>6%"], 0),
        (["worst >= 5.2%", "mean>50%"], 1),
        (["sure>3%"], 1),
        (["sure>4%"], 0),
    ],
)
def test_a_broken_limit_ends_with_exit_code_1(
    invoke: Invoke, two: None, conditions: list[str], code: int
) -> None:
    options = [word for text in conditions for word in ("--fail-if", text)]
    assert invoke("compare", "a", "b", *options).exit_code == code
    assert invoke("compare", "b", "a", *options).exit_code == 0  # b to a is an improvement


def test_trials_and_the_default_can_be_named(invoke: Invoke, two: None) -> None:
    found = json.loads(invoke("compare", "a:default", "a:1", "--format", "json").stdout)
    assert (found["first"], found["ratio"]) == ("a:0", pytest.approx(2.0))
    failed = invoke("compare", "a", "b:1")
    assert failed.exit_code == 1
    assert "b:1 has no times: nan: " in failed.stderr
    assert "b has no trial 9" in invoke("compare", "a", "b:9").stderr
    assert (
        "b has no outcome of the default configuration"
        in invoke("compare", "a", "b:default").stderr
    )


def test_a_default_that_was_not_tried_is_told(invoke: Invoke, tmp_path: Path) -> None:
    default = {"BLOCK_M": 999, "UNROLL": 0, "PACK": True}
    make_run(tmp_path / "runs", [ok(1.0)], name="elsewhere", meta={"default": default})
    result = invoke("compare", "elsewhere", "elsewhere:default")
    assert result.exit_code == 1
    assert "elsewhere:default was not tried; --remeasure times both now" in result.stderr


def test_other_baselines_compare_by_time_and_nothing_is_sure(
    invoke: Invoke, tmp_path: Path
) -> None:
    for name, time_ms in (("x", 2.0), ("y", 4.0)):
        make_run(tmp_path / "runs", [recorded(time_ms)], name=name, meta={"kind": "recorded"})
    result = invoke("compare", "x", "y", "--fail-if", "mean>90%")
    assert result.exit_code == 1
    assert "B is 100.0% slower" in result.stderr
    assert "0.500x" in result.stdout
    unsure = invoke("compare", "x", "y", "--fail-if", "sure>1%")
    assert unsure.exit_code == 2
    assert "sure>1%: these figures have no interval; add --remeasure" in unsure.stderr


def test_a_run_without_a_valid_candidate_fails_the_comparison(
    invoke: Invoke, two: None, tmp_path: Path
) -> None:
    make_run(tmp_path / "runs", [failed(OutcomeKind.NAN)], name="broken")
    result = invoke("compare", "a", "broken", "--fail-if", "median>3%")
    assert result.exit_code == 1
    assert "no valid candidate" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "median",
        "median>3",
        "medium>3%",
        "median>-3%",
        "median<3%",
        "__import__>3%",
        "median>1e9%",
        "median>٣%",
    ],
)
def test_a_limit_that_makes_no_sense_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="expected FIGURE>NUMBER%"):
        parse_condition(text)


@pytest.mark.parametrize(("condition", "code"), [("median>3%", 1), ("median>6%", 0)])
def test_the_verdict_is_the_exit_code_though_nobody_reads_the_table(
    two: None, tmp_path: Path, condition: str, code: int
) -> None:
    """Nobody reads stdout, as in `evotune compare … | head -1` under pipefail."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "evotune", "compare", "a", "b", "--fail-if", condition]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)


def test_a_machine_too_noisy_for_a_verdict_leaves_a_condition_undecided(
    invoke: Invoke, two: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = combined([timed(s) for s in (1.0, 1.2, 0.9)])
    monkeypatch.setattr("evotune.runs.reopening.remeasure", lambda *sides: noisy)
    result = invoke("compare", "a", "b", "--remeasure", "--fail-if", "median>3%")
    words = "too noisy: the same code varied by 33% from process to process"
    assert (result.exit_code, f"undecided, {words}" in result.stderr) == (6, True)
    alone = invoke("compare", "a", "b", "--remeasure")
    assert (alone.exit_code, words in alone.stderr) == (0, True)
