from __future__ import annotations

import json
from pathlib import Path

import pytest

from evotune.errors import StoreError
from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.formats import to_json
from evotune.report.html import run_payload
from evotune.report.summary import StageTime, more_budget, no_win, summarize
from evotune.run_options import RunOptions
from evotune.trial import Json, Outcome, OutcomeKind
from evotune.util.words import markdown_text

from .runs import failed, make_run, ok, text_of


def test_the_summary_counts_outcomes_pace_and_stages(tmp_path: Path) -> None:
    outcomes = [
        failed(OutcomeKind.NAN),
        *(failed(OutcomeKind.TIMEOUT) for _ in range(2)),
        ok(2.0),
        ok(2.0, duplicate_of=3),
    ]
    confirmations = {3: ok(1.9)}
    found = summarize(RunData.load(make_run(tmp_path, outcomes, confirmations=confirmations)))
    assert list(found.outcomes.items()) == [("ok", 2), ("timeout", 2), ("nan", 1)]
    assert (found.done, found.trials, found.duplicates, found.confirmed) == (5, 100, 1, 1)
    assert found.elapsed_s == 10.0
    assert found.trials_per_minute == pytest.approx(30.0)
    assert found.best is not None
    assert found.best.number == 3
    assert found.stages[0] == StageTime("compile", 5, 8.0, 2.0)
    assert found.to_json()["best"]["speedup"] == pytest.approx(1.9)
    assert found.confirmation_stages[1] == StageTime("verify", 1, 0.25, 0.25)
    assert found.to_json()["confirmation_stages"][1]["median_s"] == 0.25


def test_time_at_work_is_more_than_searching_and_the_same_in_all_reports(tmp_path: Path) -> None:
    """The pace counts only the time of searching, as in the live view."""
    run = make_run(tmp_path, [ok(2.0)] * 5, meta={"around_search_s": 65.4})
    data = RunData.load(run)
    found = summarize(data)
    assert found.elapsed_s == pytest.approx(75.4)
    assert found.trials_per_minute == pytest.approx(30.0)
    assert "| elapsed | 1 min 15 s |" in text_of("md", data)
    assert json.loads(text_of("json", data))["run"]["elapsed_s"] == pytest.approx(75.4)
    assert ["elapsed", "1 min 15 s"] in run_payload(data)["facts"]


def test_other_work_on_the_machine_is_named_in_every_report(tmp_path: Path) -> None:
    busy = "other processes keep 1.5 of 2 cores busy"
    beside = {"40": ["GPU | 0 is 30% busy", "another evotune run is measuring (process 7)"]}
    run = make_run(tmp_path, [ok(2.0)], meta={"beside": {**beside, "0": [busy]}})
    data = RunData.load(run)
    line = f"{busy}; from trial 40 on: {', '.join(beside['40'])}"
    assert f"| beside | {markdown_text(line)} |" in text_of("md", data)
    assert ["beside", line] in run_payload(data)["facts"]
    found = json.loads(text_of("json", data))["run"]["beside"]
    assert list(found.items()) == [("0", [busy]), ("40", beside["40"])]
    assert json.loads(to_json(summarize(data).to_json()))["beside"] == found


@pytest.mark.parametrize("meta", [{}, {"beside": {}}])
def test_a_run_beside_nothing_has_no_such_line(tmp_path: Path, meta: dict[str, Json]) -> None:
    data = RunData.load(make_run(tmp_path, [ok(2.0)], meta=meta))
    assert "| beside |" not in text_of("md", data)
    assert json.loads(text_of("json", data))["run"]["beside"] == {}


@pytest.mark.parametrize("beside", [7, {"0": "text"}, {"0": [1]}, {"soon": ["work"]}])
def test_another_shape_of_it_than_is_stored_is_damage(tmp_path: Path, beside: Json) -> None:
    run = make_run(tmp_path, [ok(2.0)], meta={"beside": beside})
    with pytest.raises(StoreError, match="is damaged"):
        RunData.load(run)


def test_an_empty_run_has_no_pace_and_no_best(tmp_path: Path) -> None:
    found = summarize(RunData.load(make_run(tmp_path, [])))
    assert (found.best, found.trials_per_minute, found.elapsed_s) == (None, None, 0.0)


def test_a_run_is_running_only_while_a_process_holds_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, [ok(1.0)], meta={"state": "running"})
    assert summarize(RunData.load(run)).state == "killed"
    with run.locked():
        found = summarize(RunData.load(run))
    assert found.state == "running"
    assert found.holder is not None


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        *((None, "-"), (float("inf"), "-"), (0.0, "0"), (0.01234, "0.01234")),
        *((1.0, "1.000"), (12.345, "12.35"), (999.96, "1000.0"), (123456.7, "123457")),
    ],
)
def test_times_show_four_digits(time_us: float | None, text: str) -> None:
    assert wording.time_us_text(time_us) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7500, "2 h 05 min")],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert wording.duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 ms"), (0.08731, "87.3 ms"), (9.9996, "9999.6 ms"), (12.34, "12.3 s")],
)
def test_stages_read_in_milliseconds_while_they_are_short(seconds: float, text: str) -> None:
    assert wording.stage_text(seconds) == text


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("finished:trials", "finished (trial budget spent)"),
        ("finished:exhausted", "finished (every configuration tried)"),
        ("killed", "killed (resumable)"),
        ("running", "running"),
    ],
)
def test_states_are_put_into_words(state: str, text: str) -> None:
    assert wording.state_text(state) == text


@pytest.mark.parametrize(
    ("reason", "now", "more"),
    [
        ("trials", 500_000, "1000000"),
        ("trials", 600_001, "1200002"),
        ("minutes", 0.1, "0.2"),
        ("minutes", 20.0, "40"),
        ("minutes", 500_000.5, "1000001"),
    ],
)
def test_twice_the_budget_is_a_number_that_resume_takes(reason: str, now: float, more: str) -> None:
    assert more_budget(reason, RunOptions().replaced({reason: now})) == [f"--{reason}", more]


@pytest.mark.parametrize(
    ("confirmed", "words"),
    [
        (None, "no win: nothing is confirmed; this confirms the best: evotune resume"),
        (
            ok(0.8),
            "no win: all that is confirmed is slower than the baseline; what limits the best",
        ),
        (
            ok(1.05, 0.9, 1.2),
            "no win yet: the best may be faster or slower than the baseline, since",
        ),
    ],
)
def test_a_run_without_a_win_says_so_and_what_to_do(
    tmp_path: Path, confirmed: Outcome | None, words: str
) -> None:
    known = {} if confirmed is None else {0: confirmed}
    data = RunData.load(make_run(tmp_path, [ok(1.2)], confirmations=known))
    assert not data.won
    text = no_win(data)
    assert words in text
    assert "\n" not in text
