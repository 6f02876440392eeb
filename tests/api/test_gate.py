"""`evotune.gate`: its verdicts, its time limit, and what may be a candidate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report.runs import make_run, ok

import evotune
from evotune.api import gating
from evotune.errors import UsageError
from evotune.runs.confirming import ConfirmingTime
from evotune.runs.starting import RunResult
from evotune.trial import Outcome, OutcomeKind
from tests.api.small import SOURCE, FewRows, kernel, keywords
from tests.patience import passing_time
from tests.runs.runs import brief_confirmations

KEYS = {"verdict", "passed", "reason", "checks", "domain", "baseline", "environment", "time_us"}
KEYS |= {"speedup", "speedup_low", "speedup_high"}


def test_gate_passes_a_right_kernel_and_says_how_fast_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long its checks take: a run would give up once they took longer than its search."""
    at_once = staticmethod(lambda searched_s, champions: ConfirmingTime(0.0))
    monkeypatch.setattr(ConfirmingTime, "after", at_once)
    given = keywords(problem=FewRows)
    del given["parameters"]
    with brief_confirmations():
        verdict = evotune.gate(kernel(), **given)
    assert verdict.passed, verdict.reason
    assert {check.status for check in verdict.checks} <= {"passed", "skipped"}
    assert verdict.speedup_low is not None
    assert verdict.speedup is not None
    assert verdict.speedup_low <= verdict.speedup
    found = json.loads(json.dumps(verdict.to_json()))
    assert found.keys() >= KEYS
    assert (found["verdict"], found["passed"], found["reason"]) == ("passed", True, "")
    assert found["baseline"] == {"(8,64)": "torch:eager"}
    assert found["environment"]["device"]["backend"] == "cpu"
    assert found["domain"]


def test_gate_refuses_a_wrong_kernel_with_a_reason() -> None:
    wrong = SOURCE.replace("+ y[column]", "- y[column]")
    verdict = evotune.gate(kernel(wrong), configuration={"UNUSED": 2}, **keywords())
    assert not verdict.passed
    assert verdict.verdict == "refused"
    assert verdict.configuration["UNUSED"] == 2
    assert verdict.outcome.kind == "wrong_result"
    assert verdict.reason
    assert (verdict.speedup, verdict.to_json()["passed"]) == (None, False)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seconds", [0.01, 4.0])
def test_a_time_limit_that_ends_first_leaves_the_kernel_undecided(seconds: float) -> None:
    """The first limit ends before anything is measured. The second one ends somewhere on the way:
    a kernel that always passes is then never refused."""
    verdict = evotune.gate(kernel(), seconds=seconds, **keywords(problem=FewRows))
    assert verdict.verdict in {"undecided", "passed"}
    if seconds < 1:
        assert verdict.verdict == "undecided"
        assert (verdict.passed, verdict.undecided, verdict.speedup) == (False, True, None)
        assert verdict.reason == "the time limit of 0.01 s ended before the kernel was tried"
        assert verdict.to_json().keys() >= KEYS


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_limit_is_a_positive_number(seconds: float) -> None:
    with pytest.raises(UsageError, match="seconds: expected a positive number"):
        evotune.gate(kernel(), seconds=seconds, **keywords())


NOISY = Outcome(OutcomeKind.UNDECIDED, reason="(8,64): the machine is too noisy: a launch …")
WRONG = Outcome(OutcomeKind.WRONG_RESULT, reason="out is off")


@pytest.mark.parametrize(
    ("state", "outcomes", "verdict"),
    [
        ("finished:trials", ([ok(1.5)], {0: ok(1.4)}), "passed"),
        ("finished:trials", ([ok(1.5)], {0: WRONG}), "refused"),
        ("finished:trials", ([WRONG], {}), "refused"),
        ("finished:trials", ([NOISY], {}), "undecided"),
        ("finished:trials", ([ok(1.5)], {0: NOISY}), "undecided"),
        ("finished:minutes", ([], {}), "undecided"),
        ("finished:minutes", ([ok(1.5)], {}), "undecided"),
        ("interrupted", ([WRONG], {}), "refused"),
        ("interrupted", ([], {}), KeyboardInterrupt),
        ("interrupted", ([ok(1.5)], {}), KeyboardInterrupt),
    ],
)
def test_a_kernel_passes_only_if_it_was_confirmed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    outcomes: tuple[list[Outcome], dict[int, Outcome]],
    verdict: Any,
) -> None:
    trials, confirmed = outcomes
    run = make_run(tmp_path, trials, confirmations=confirmed, meta={"state": state})
    monkeypatch.setattr(gating, "start_run", lambda *given: RunResult(run, "", 1))
    if verdict is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            evotune.gate(kernel(), **keywords())
        return
    found = evotune.gate(kernel(), **keywords())
    assert (found.verdict, found.passed) == (verdict, verdict == "passed")
    assert bool(found.reason) is (verdict != "passed")


def test_a_run_that_the_time_limit_interrupted_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, [ok(1.5)], meta={"state": "interrupted"})
    let_pass = passing_time(monkeypatch)

    def start(*given: object) -> RunResult:
        let_pass(8.0)
        return RunResult(run, "", 1)

    monkeypatch.setattr(gating, "start_run", start)
    found = evotune.gate(kernel(), seconds=7, **keywords())
    assert found.verdict == "undecided"
    assert "the time limit of 7 s ended before the kernel was checked as a champion" in found.reason
