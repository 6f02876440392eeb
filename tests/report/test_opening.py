"""The page opens with answers: what won, by how much, is it sure, why, how to use it, what next."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evotune.report import markdown
from evotune.report.data import RunData
from evotune.report.html import Explained, html_page, run_payload
from evotune.trial import Outcome, OutcomeKind

from .runs import configuration, failed, make_run, ok, recorded


def opening(folder: Path, outcomes: list[Outcome], **given: Any) -> dict[str, Mapping[str, Any]]:
    data = RunData.load(make_run(folder, outcomes, **given))
    return {answer["question"]: answer for answer in run_payload(data)["answers"]}


def said(answer: Mapping[str, Any]) -> str:
    return " ".join(answer["sentences"])


def lines(answer: Mapping[str, Any]) -> list[str]:
    return [line for line, _ in answer["commands"]]


def test_a_confirmed_winner_answers_every_question(tmp_path: Path) -> None:
    won = ok(1.4, 1.35, 1.45, held_out=("odd",))
    found = opening(
        tmp_path, [ok(1.1), ok(1.5)], confirmations={1: won}, meta={"default": configuration(0)}
    )
    assert said(found["What won?"]) == (
        "Trial 1 of 2. 3 of its 3 values differ from the default's: BLOCK_M=32 UNROLL=1 PACK=false."
    )
    assert said(found["By how much?"]) == "1.40 times as fast as sdpa:flash in each of 2 cases."
    sure = said(found["Is it sure?"])
    assert sure.startswith("Yes: the results are right, and the whole 95% interval")
    assert "on inputs and shapes that the search never saw, and passed 1 check." in sure
    export, install, use = lines(found["How do I use it?"])
    assert export.startswith("evotune export ")
    assert " -o attention_cpu_package" in export
    assert install == "pip install --no-deps ./attention_cpu_package"
    assert use == "import attention_cpu; attention_cpu.activate()"
    assert [line.split()[1] for line in lines(found["What next?"])] == ["resume", "verify"]
    assert "--trials 200" in lines(found["What next?"])[0]


@pytest.mark.parametrize(
    ("confirmation", "verdict", "usable"),
    [
        (None, "No. This is the search's own figure", False),
        (ok(1.1, 0.9, 1.3), "It may be faster or slower", False),
        (ok(0.8, 0.7, 0.9), "Yes: the results are right, and it is slower", False),
        (
            ok(1.5, 1.0, 2.2, flags=("too_noisy",)),
            "No. The figure is too noisy: the same code varied",
            True,
        ),
    ],
)
def test_the_page_says_how_sure_a_figure_is_and_offers_what_can_be_used(
    tmp_path: Path, confirmation: Outcome | None, verdict: str, usable: bool
) -> None:
    confirmations = {} if confirmation is None else {0: confirmation}
    found = opening(tmp_path, [ok(1.5)], confirmations=confirmations)
    assert verdict in said(found["Is it sure?"])
    assert bool(lines(found["How do I use it?"])) is usable


@pytest.mark.parametrize("problem", ["attention", "problem.py:Softmax"])
def test_a_package_of_a_users_problem_can_be_made_though_nothing_won(
    tmp_path: Path, problem: str
) -> None:
    slow = {0: ok(1.1, 0.9, 1.3)}
    found = opening(tmp_path, [ok(1.5)], confirmations=slow, meta={"problem": {"name": problem}})
    assert ("You can still make" in said(found["How do I use it?"])) is (problem != "attention")


def test_a_case_that_got_slower_and_a_skipped_check_are_named(tmp_path: Path) -> None:
    won = ok(1.4, held_out=("odd",))
    odd = msgspec.structs.replace(
        won.measurements[-1], speedup=0.8, speedup_low=0.7, speedup_high=0.9
    )
    skipped = msgspec.structs.replace(won.checks[0], status="skipped")
    won = msgspec.structs.replace(
        won, measurements=(*won.measurements[:-1], odd), checks=(*won.checks, skipped)
    )
    sure = said(opening(tmp_path, [ok(1.5)], confirmations={0: won})["Is it sure?"])
    assert "surely slower than the baseline at odd (held out)." in sure
    assert "1 skipped, evotune verify says why" in sure


def test_a_leader_that_is_slower_did_not_win(tmp_path: Path) -> None:
    slow = ok(0.8, 0.7, 0.9, held_out=("odd",))
    odd = msgspec.structs.replace(
        slow.measurements[-1], speedup=1.5, speedup_low=1.4, speedup_high=1.6
    )
    slow = msgspec.structs.replace(slow, measurements=(*slow.measurements[:-1], odd))
    meta = {"default": configuration(0)}
    found = opening(tmp_path, [ok(0.9)], confirmations={0: slow}, meta=meta)
    assert said(found["What won?"]) == (
        "Nothing is faster than the baseline. The best is trial 0 of 1: the space's default. "
        "So few trials say little."
    )
    assert said(found["How do I use it?"]).endswith("may serve odd.")


def test_times_that_contradict_the_speedup_are_left_out(tmp_path: Path) -> None:
    slow = ok(0.8, 0.7, 0.9, flags=("too_noisy",))
    (first, *_) = slow.measurements
    only = msgspec.structs.replace(first, time_us=first.baseline_us * 0.9)
    slow = msgspec.structs.replace(slow, measurements=(only,))
    found = opening(tmp_path, [ok(0.9)], confirmations={0: slow})
    assert said(found["By how much?"]).startswith("0.80 times as fast as ")
    assert "probably slower than the baseline at" in said(found["Is it sure?"])


def test_a_figure_below_one_whose_interval_holds_one_claims_nothing(tmp_path: Path) -> None:
    noisy = ok(0.97, 0.9, 1.05)
    found = opening(tmp_path, [noisy], confirmations={0: noisy})
    assert "Nothing is surely faster than the baseline." in said(found["What won?"])
    assert "may be faster or slower: the 95% interval contains 1" in said(found["Is it sure?"])


def test_a_page_without_a_browser_has_the_same_answers(tmp_path: Path) -> None:
    data = RunData.load(make_run(tmp_path, [ok(1.5)], confirmations={0: ok(1.4, 1.35, 1.45)}))
    page = markdown.page(data)
    places = [page.index(f"**{answer['question']}**") for answer in run_payload(data)["answers"]]
    assert places == sorted(places)
    assert "**Is it sure?** Yes: the results are right" in page
    assert "- `pip install --no-deps ./attention_cpu_package` installs it" in page


def test_a_page_without_javascript_has_the_same_answers(tmp_path: Path) -> None:
    data = RunData.load(make_run(tmp_path, [ok(1.5)], confirmations={0: ok(1.4, 1.35, 1.45)}))
    _, rest = html_page([data]).split("<noscript>")
    static, _ = rest.split("</noscript>")
    for answer in run_payload(data)["answers"]:
        assert f"<b>{answer['question']}</b> {escape(' '.join(answer['sentences']))}" in static
        assert all(escape(line) in static for line, _ in answer["commands"])


def test_the_reason_is_an_ablation_of_this_leader(tmp_path: Path) -> None:
    row = {"parameter": "UNROLL", "before": 2, "after": 1, "also": {}, "why": "default",
           "outcome": "ok", "reason": "", "ratio": 0.8,
           "ratio_low": 0.78, "ratio_high": 0.82}  # fmt: skip
    harmless = {**row, "parameter": "PACK", "ratio": 1.0, "ratio_high": 1.1}
    pair = {**row, "also": {"BLOCK_M": 32}, "ratio": 0.5, "ratio_high": 0.52}
    for trial, expected in ((0, "UNROLL 2 to 1 (0.80 times as fast)"), (7, "")):
        found = opening(
            tmp_path / str(trial), [ok(1.5)], confirmations={0: ok(1.4)},
            meta={"ablation": {"trial": trial, "configuration": {}, "date": "2030-01-02",
                               "rows": [row, harmless, pair]}},
        )  # fmt: skip
        why = found["Why?"]
        assert expected in said(why)
        assert "PACK" not in said(why)
        assert "BLOCK_M" not in said(why)
        assert bool(lines(why)) is (trial == 7)  # else the command that measures it


@pytest.mark.parametrize("complete", [False, True])
def test_an_explanation_answers_why_and_what_next(tmp_path: Path, complete: bool) -> None:
    data = RunData.load(make_run(tmp_path, [ok(1.5)], confirmations={0: ok(1.4)}))
    explained = Explained(
        section={}, why=["Tensor cores."], complete=complete, tries=["Try a pad."], triable=True
    )
    found = {each["question"]: each for each in run_payload(data, explained)["answers"]}
    assert found["Why?"]["sentences"] == ["Tensor cores."]
    assert bool(lines(found["Why?"])) is not complete  # the command that measures the rest
    assert found["What next?"]["sentences"] == ["Try a pad."]
    assert lines(found["What next?"])[0].split()[3] == "--try"


def test_a_noisy_figure_is_not_shown_as_a_gain(tmp_path: Path) -> None:
    noisy = ok(1.5, 1.2, 2.2, flags=("too_noisy",))
    data = RunData.load(make_run(tmp_path, [ok(1.5)], confirmations={0: noisy}))
    assert run_payload(data)["headline"]["noise"].startswith("too noisy")


def test_a_run_without_a_winner_says_what_happened(tmp_path: Path) -> None:
    found = opening(tmp_path, [failed(OutcomeKind.COMPILE_ERROR)], meta={"state": "interrupted"})
    assert list(found) == ["What next?"]
    assert "No candidate is valid (1 compile_error)." in said(found["What next?"])
    (resume,) = lines(found["What next?"])
    assert resume.startswith("evotune resume ")
    assert "--trials" not in resume


def test_a_recording_has_no_baseline_to_be_sure_of(tmp_path: Path) -> None:
    found = opening(tmp_path, [recorded(2.0)], meta={"kind": "recorded"})
    assert list(found) == ["What won?", "What next?"]
