from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from evotune.report.data import RunData
from evotune.report.front import pareto_front
from evotune.report.html import run_payload
from evotune.report.screen import leaderboard_lines, plain
from evotune.trial import Outcome, OutcomeKind

from .runs import META, failed, make_run, ok, text_of

LIMIT = 2e-3


def run(tmp_path: Path, outcomes: Sequence[Outcome], **more: object) -> RunData:
    settings = {**META["settings"], "objectives": ["speedup", "error"]}
    folder = make_run(tmp_path, outcomes, meta={"settings": settings}, **more)  # type: ignore[arg-type]
    return RunData.load(folder)


OUTCOMES = (
    ok(1.0, max_error=0.1 * LIMIT),
    ok(3.0, max_error=0.9 * LIMIT),
    ok(2.0, max_error=0.9 * LIMIT),  # slower than 1, no more accurate
    failed(OutcomeKind.WRONG_RESULT),
    ok(2.5, max_error=0.5 * LIMIT),
    ok(2.5, max_error=0.5 * LIMIT),  # the same as 4
    ok(0.5, max_error=0.2 * LIMIT),
)


def test_the_front_holds_what_nothing_beats_in_both(tmp_path: Path) -> None:
    front = pareto_front(run(tmp_path, OUTCOMES))
    assert [row.number for row in front] == [1, 4, 0]
    assert [row.speedup for row in front] == pytest.approx([3.0, 2.5, 1.0])
    assert [row.error for row in front] == pytest.approx([0.9, 0.5, 0.1])


def test_who_failed_its_confirmation_is_not_on_the_front(tmp_path: Path) -> None:
    """A confirmation checks more, so its larger errors do not move a trial on the front."""
    confirmations = {
        1: failed(OutcomeKind.WRONG_RESULT),
        4: ok(2.4, max_error=0.99 * LIMIT),
    }
    front = pareto_front(run(tmp_path, OUTCOMES, confirmations=confirmations))
    assert [(row.number, row.confirmed) for row in front] == [(4, True), (0, False)]
    assert front[0].error == pytest.approx(0.5)


def test_every_report_shows_the_front(tmp_path: Path) -> None:
    data = run(tmp_path, OUTCOMES)
    assert "trial 4: 2.500x, error 50.0% of its limit" in plain(leaderboard_lines(data, 3, 100))
    assert "## Pareto front" in text_of("md", data)
    assert json.loads(text_of("json", data))["run"]["front"] == [1, 4, 0]
    assert [row["trial"] for row in run_payload(data)["front"]] == [1, 4, 0]


def test_a_run_for_speed_alone_has_no_front(tmp_path: Path) -> None:
    data = RunData.load(make_run(tmp_path, OUTCOMES))
    assert pareto_front(data) == ()
    assert "Pareto" not in plain(leaderboard_lines(data, 3, 100)) + text_of("md", data)
