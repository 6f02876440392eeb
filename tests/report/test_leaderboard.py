from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evotune.report.data
import evotune.report.markdown
from evotune.report.data import RunData, Sample, Totals
from evotune.report.formats import LEADERBOARDS, REPORTS
from evotune.report.html import run_payload
from evotune.report.leaderboard import Leaderboard, rank
from evotune.report.screen import leaderboard_lines
from evotune.report.summary import summarize
from evotune.report.whole import ranks
from evotune.runs.folder import RunFolder
from evotune.store.facts import Facts
from evotune.trial import Configuration, Json, Outcome, OutcomeKind, Trial

from .runs import configuration, failed, make_run, ok, recorded


def board(runs_dir: Path, *outcomes: Outcome, **more: object) -> Leaderboard:
    return rank(RunData.load(make_run(runs_dir, outcomes, **more)))  # type: ignore[arg-type]


def places(found: Leaderboard) -> list[tuple[str, int]]:
    return [(row.place, row.number) for row in found.rows]


def test_unconfirmed_rows_are_ranked_by_fitness(tmp_path: Path) -> None:
    found = board(tmp_path, ok(1.0), ok(3.0), failed(OutcomeKind.NAN), ok(2.0))
    assert places(found) == [("1", 1), ("2", 3), ("3", 0)]


def test_confirmed_rows_come_first_by_the_lower_bound_of_their_interval(tmp_path: Path) -> None:
    found = board(
        tmp_path,
        *(ok(speedup) for speedup in (5.0, 2.0, 2.1, 4.0)),
        confirmations={1: ok(2.0, 1.9, 2.01), 2: ok(2.5, 1.2, 1.3)},
    )
    assert [row.number for row in found.rows] == [1, 2, 0, 3]
    assert [row.confirmed for row in found.rows] == [True, True, False, False]
    assert found.rows[1].figures.speedup == pytest.approx(2.5)


def test_overlapping_intervals_share_a_rank_and_the_next_rank_counts_them(tmp_path: Path) -> None:
    found = board(
        tmp_path, ok(2.0, 1.8, 2.2), ok(1.9, 1.7, 1.85), ok(1.75, 1.6, 1.79), ok(1.5, 1.4, 1.61)
    )
    # 2 overlaps 1 but not the leader 0, so it leads the next group; 3 overlaps that leader.
    assert places(found) == [("1=", 0), ("1=", 1), ("3=", 2), ("3=", 3)]


def test_a_row_of_its_own_has_a_plain_rank(tmp_path: Path) -> None:
    assert places(board(tmp_path, ok(2.0), ok(1.0))) == [("1", 0), ("2", 1)]


def test_what_different_models_measured_is_ranked_apart(tmp_path: Path) -> None:
    def on(model: str, speedup: float) -> Outcome:
        resources = {"device": {"model": model, "id": f"id of {model}"}}
        return msgspec.structs.replace(ok(speedup), resources=resources)

    found = board(tmp_path, on("GPU B", 9.0), ok(2.0), on("Test CPU", 3.0), on("GPU B", 4.0))
    assert [(row.model, row.place, row.number) for row in found.rows] == [
        ("Test CPU", "1", 2),
        ("Test CPU", "2", 1),
        ("GPU B", "1", 0),
        ("GPU B", "2", 3),
    ]
    one_model = board(tmp_path / "one", on("Test CPU", 3.0), ok(2.0))
    assert [row.model for row in one_model.rows] == ["", ""]


def test_duplicates_fold_into_the_first_trial_of_their_code(tmp_path: Path) -> None:
    found = board(tmp_path, ok(2.0), ok(2.0, duplicate_of=0), ok(3.0), ok(2.0, duplicate_of=1))
    assert [(row.number, row.duplicates) for row in found.rows] == [(2, ()), (0, (1, 3))]


def test_a_duplicate_whose_twin_is_not_stored_stands_for_itself(tmp_path: Path) -> None:
    found = board(tmp_path, ok(2.0, duplicate_of=99), ok(2.0, duplicate_of=99))
    assert [(row.number, row.duplicates) for row in found.rows] == [(0, (1,))]


def test_a_failed_confirmation_takes_the_trial_and_its_duplicates_out(tmp_path: Path) -> None:
    found = board(
        tmp_path,
        ok(2.0),
        ok(2.0, duplicate_of=0),
        ok(1.5),
        confirmations={0: failed(OutcomeKind.WRONG_RESULT, "held-out shape differs")},
    )
    assert [row.number for row in found.rows] == [2]
    (out,) = found.disqualified
    assert out.trial.number == 0
    assert out.reason == "in confirmation: held-out shape differs"


def test_a_failed_confirmation_of_a_duplicate_overrules_a_passed_one(tmp_path: Path) -> None:
    confirmations = {0: ok(2.0), 1: failed(OutcomeKind.NAN)}
    found = board(tmp_path, ok(2.0), ok(2.0, duplicate_of=0), confirmations=confirmations)
    assert found.rows == ()


def test_a_recorded_run_is_ranked_by_time_and_ties_only_on_equal_times(tmp_path: Path) -> None:
    meta = {"kind": "recorded"}
    found = board(tmp_path, recorded(2.0), recorded(1.0), recorded(2.0), meta=meta)
    assert places(found) == [("1", 1), ("2=", 0), ("2=", 2)]
    assert found.rows[0].figures.speedup is None
    assert found.rows[0].figures.time_us == pytest.approx(1000.0)


@pytest.mark.parametrize("outcomes", [[], [failed(OutcomeKind.TIMEOUT)]])
def test_a_run_without_a_valid_trial_has_no_rows(tmp_path: Path, outcomes: list[Outcome]) -> None:
    assert board(tmp_path, *outcomes).rows == ()


def _data(outcomes: list[Outcome], confirmations: dict[int, Outcome]) -> RunData:
    trials = tuple(Trial(n, Configuration({"A": n}), o) for n, o in enumerate(outcomes))
    return RunData("run", "runs/run", Facts(), {}, trials, {}, confirmations, Totals({}))


@given(st.randoms(use_true_random=False), st.integers(1, 40))
@settings(derandomize=True, max_examples=60)
def test_every_valid_code_has_one_row_and_ranks_never_fall(rng: random.Random, count: int) -> None:
    outcomes = [
        ok(
            rng.uniform(0.5, 2.0),
            cases=("a",),
            duplicate_of=rng.randrange(n) if n and rng.random() < 0.3 else None,
        )
        if rng.random() < 0.9
        else failed(OutcomeKind.NAN)
        for n in range(count)
    ]
    picked = [n for n in range(count) if outcomes[n].ok and rng.random() < 0.2]
    found = rank(_data(outcomes, {n: ok(rng.uniform(0.5, 2.0)) for n in picked}))
    ranks = [row.rank for row in found.rows]
    assert ranks == sorted(ranks)
    assert all(row.rank <= place for place, row in enumerate(found.rows, start=1))
    assert all(row.tied == (ranks.count(row.rank) > 1) for row in found.rows)
    shown = [n for row in found.rows for n in (row.number, *row.duplicates)]
    assert len(shown) == len(set(shown))
    assert {n for n in shown if outcomes[n].duplicate_of is None} == {
        n for n, outcome in enumerate(outcomes) if outcome.ok and outcome.duplicate_of is None
    }
    confirmed = [row.confirmed for row in found.rows]
    assert confirmed == sorted(confirmed, reverse=True)


def random_run(runs_dir: Path, rng: random.Random) -> RunFolder:
    """A run with ties, failures, champions and duplicates (of duplicates and lost trials too)."""
    outcomes: list[Outcome] = []
    for number in range(rng.choice([1, 6, 30])):
        if rng.random() < 0.3:
            outcomes.append(failed(rng.choice([OutcomeKind.NAN, OutcomeKind.TIMEOUT])))
        else:
            twin = rng.randrange(number + 3) if rng.random() < 0.4 else None
            outcomes.append(ok(1 + rng.randrange(12) / 50, duplicate_of=twin))
    numbers = rng.sample(range(len(outcomes)), min(len(outcomes), rng.randrange(4)))
    verdicts = {n: rng.choice([ok(1.1), failed(OutcomeKind.NAN)]) for n in numbers}
    return make_run(runs_dir, outcomes, name=f"{rng.random()}", confirmations=verdicts)


def test_the_head_of_the_leaderboard_needs_few_trials_and_is_the_same(tmp_path: Path) -> None:
    rng = random.Random(0)
    left_out = 0
    for _ in range(16):
        run = random_run(tmp_path, rng)
        whole = RunData.load(run)
        for count in (1, 3, 10):
            head = RunData.load(run, count)
            left_out += len(whole.trials) - len(head.trials)
            assert leaderboard_lines(head, count, 100) == leaderboard_lines(whole, count, 100)
            assert rank(head).rows[:count] == rank(whole).rows[:count]
            for style, text in LEADERBOARDS.items():
                if style != "csv":  # the columns of CSV depend on the loaded trials
                    assert text(head, count) == text(whole, count)
            assert summarize(head) == summarize(whole)
    assert left_out > 100


def test_a_report_that_reads_trial_by_trial_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evotune.report.data, "_HEAD_ROWS", 2)
    monkeypatch.setattr(evotune.report.markdown, "_SHOWN_ROWS", 2)
    rng = random.Random(1)
    streamed = 0
    for _ in range(16):
        run = random_run(tmp_path, rng)
        whole = RunData.load(run)
        with RunData.opened(run) as data:
            streamed += data.store is not None
            for style, pieces in REPORTS.items():
                assert "".join(pieces(data)) == "".join(pieces(whole)), style
    assert streamed > 4


def test_a_sample_of_a_large_run_says_the_same_of_what_it_holds(tmp_path: Path) -> None:
    rng = random.Random(2)
    outcomes = [
        ok(rng.uniform(0.5, 2), 0.4, 2.1, duplicate_of=n // 2 if n % 5 == 4 else None)
        if rng.random() < 0.8
        else failed(OutcomeKind.NAN, f"reason {n % 3}")
        for n in range(200)
    ]
    confirmations = {n: ok(1.1, 0.4, 2.1) for n in range(4) if outcomes[n].ok}
    run = make_run(
        tmp_path, outcomes, confirmations=confirmations, meta={"default": configuration(7)}
    )
    whole = RunData.load(run)
    with RunData.thinned(run, 200) as data:
        assert data == whole
    with RunData.thinned(run, 50) as data:
        assert data.sample == Sample(every=5, leaders=10)
        held = {trial.number for trial in data.trials}
        assert {*range(0, 200, 5), 7} < held
        assert len(held) < 100
        valid = [t for t in whole.trials if t.outcome.ok and t.outcome.duplicate_of is None]
        best = list(itertools.accumulate(valid, lambda a, b: max(a, b, key=_fitness)))
        assert {trial.number for trial in best} <= held
        page, of_all = run_payload(data), run_payload(whole)
        for name in ("headline", "outcomes", "total", "disqualified", "default", "stages"):
            assert page[name] == of_all[name]
        assert (page["every"], of_all["every"]) == (5, 1)
        places = {n: p for n, p in zip(*_shown(of_all), strict=True) if p is not None}
        shown = {n: p for n, p in zip(*_shown(page), strict=True) if p is not None}
        assert list(shown.items()) == list(places.items())[:10]


def _fitness(trial: Trial) -> float:
    assert trial.outcome.fitness is not None
    return trial.outcome.fitness


def _shown(page: dict[str, Json]) -> tuple[list[int], list[str | None]]:
    return page["trials"]["number"], page["trials"]["place"]


def test_a_number_that_json_lacks_hides_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evotune.report.data, "_HEAD_ROWS", 1)
    odd = ok(1.4, max_error=math.nan)
    models = [{"device": {"model": name}} for name in ("one", "other")]
    others = [msgspec.structs.replace(ok(1 + n / 9), resources=models[n % 2]) for n in range(6)]
    run = make_run(tmp_path, [odd, *others])
    with RunData.opened(run) as data:
        assert data.store is not None
        assert list(ranks(data).items()) == [
            (row.number, row.rank) for row in rank(RunData.load(run)).rows
        ]
