from __future__ import annotations

import json
from pathlib import Path

import pytest
from report.runs import failed, make_run, ok, recorded

from evotune.errors import UsageError
from evotune.report.fail_if import parse_condition
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
    assert "b stored no default" in invoke("compare", "a", "b:default").stderr


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
    assert invoke("compare", "x", "y", "--fail-if", "sure>1%").exit_code == 2


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
