"""`evotune.check`, `compile`, `replay` and `gate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report.runs import make_run, ok

import evotune
from evotune.api import checking
from evotune.api.run import Run
from evotune.errors import UsageError
from evotune.runs.compiling import CompileRow
from evotune.runs.confirming import ConfirmingTime
from evotune.trial import Outcome
from tests.api.small import SOURCE, FewRows, kernel, keywords
from tests.runs.runs import RECORDING, brief_confirmations


def test_check_counts_a_space() -> None:
    found = evotune.check(kernel(), **keywords(constraints=["UNUSED < 2"]))
    assert (found.size.valid, found.size.cartesian) == (1, 2)
    assert found.cases == ("(8,64)",)
    with pytest.raises(evotune.EvotuneError, match=r"Space.shapes\[0\]: the shape lacks rows"):
        evotune.check(kernel(), **keywords(shapes=[{"columns": 3}]))


def test_compile_counts_what_compiles() -> None:
    rows: list[CompileRow] = []
    found = evotune.compile(
        kernel(), sample=None, on_row=lambda row, counts: rows.append(row), **keywords()
    )
    assert (found.tried, found.compiled, found.all_compile) == (2, 2, True)
    assert sorted(row.configuration["UNUSED"] for row in rows) == [1, 2]
    broken = evotune.compile(kernel("no C++"), **keywords())
    assert (broken.compiled, broken.all_compile) == (0, False)


def test_replay_scores_a_strategy() -> None:
    found = evotune.replay(RECORDING, strategy="random", evaluations=30, repeats=2)
    assert [len(repeat.times_ms) for repeat in found.repeats] == [30, 30]
    assert found.score is not None
    assert found.repeats[0].times_ms != found.repeats[1].times_ms


class First:
    def __init__(self, space: Any, settings: Any) -> None:
        self._all = space.enumerate()

    def ask(self, number: int, pending: Any) -> Any:
        return next(self._all)

    def tell(self, trial: Any) -> None: ...


@pytest.mark.parametrize("wanted", [{"repeats": 0}, {"evaluations": 0}, {"evaluations": -1}])
def test_replay_makes_at_least_one_evaluation(wanted: dict[str, int]) -> None:
    (name,) = wanted
    with pytest.raises(UsageError, match=f"{name}: expected 1 or more"):
        evotune.replay(RECORDING, **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpus", ["some", "²", 0, -1, "9" * 5000])
def test_a_number_of_gpus_that_is_none_is_a_usage_error(gpus: int | str) -> None:
    with pytest.raises(UsageError, match="expected all or a number of GPUs"):
        evotune.tune("softmax-cpu", gpus=gpus)


def test_replay_takes_a_strategy_of_ones_own() -> None:
    found = evotune.replay(RECORDING, strategy=First, evaluations=5)
    listed = found.recording.space.enumerate()
    assert found.repeats[0].times_ms == [
        found.recording.times_ms.get(next(listed)) for _ in range(5)
    ]


def test_gate_passes_a_right_kernel_and_says_how_fast_it_is() -> None:
    given = keywords(problem=FewRows)
    del given["parameters"]
    with brief_confirmations():
        verdict = evotune.gate(kernel(), **given)
    assert verdict.passed, verdict.reason
    assert {check.status for check in verdict.checks} <= {"passed", "skipped"}
    assert verdict.speedup_low is not None
    assert verdict.speedup is not None
    assert verdict.speedup_low <= verdict.speedup
    assert json.loads(json.dumps(verdict.to_json()))["passed"] is True


@pytest.mark.soak
def test_gate_confirms_a_kernel_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run gives up on a busy machine, where its checks take longer than its search."""
    at_once = staticmethod(lambda searched_s, champions: ConfirmingTime(0.0))
    monkeypatch.setattr(ConfirmingTime, "after", at_once)
    with brief_confirmations():
        verdict = evotune.gate(kernel(), **keywords(problem=FewRows))
    assert verdict.passed, verdict.reason


def test_gate_fails_a_wrong_kernel_with_a_reason() -> None:
    wrong = SOURCE.replace("+ y[column]", "- y[column]")
    verdict = evotune.gate(kernel(wrong), configuration={"UNUSED": 2}, **keywords())
    assert not verdict.passed
    assert verdict.configuration["UNUSED"] == 2
    assert verdict.outcome.kind == "wrong_result"
    assert verdict.reason
    assert (verdict.speedup, verdict.to_json()["passed"]) == (None, False)


@pytest.mark.parametrize(
    ("state", "trials", "raising"),
    [
        ("interrupted", [ok(1.5)], pytest.raises(KeyboardInterrupt)),
        ("interrupted", [], pytest.raises(KeyboardInterrupt)),
        ("finished:minutes", [], pytest.raises(evotune.EvotuneError, match="was tried")),
        ("finished:minutes", [ok(1.5)], pytest.raises(evotune.EvotuneError, match="was checked")),
    ],
)
def test_gate_gives_no_verdict_where_a_champions_checks_did_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, trials: list[Outcome], raising: Any
) -> None:
    run = Run(make_run(tmp_path, trials, meta={"state": state}))
    monkeypatch.setattr(checking, "tune", lambda *args, **options: run)
    with raising:
        evotune.gate(kernel(), **keywords())
