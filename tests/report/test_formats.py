from __future__ import annotations

import csv
import io
import json
import math
import re
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from evotune.errors import StoreError
from evotune.report.data import RunData
from evotune.report.formats import LEADERBOARDS, REPORTS
from evotune.report.frame import run_columns, to_parquet
from evotune.trial import Check, Json, Outcome, OutcomeKind

from .runs import CASES, failed, make_run, ok, recorded, text_of

HOSTILE = '=HYPERLINK("http://x")|\x1b[2J<script>alert(1)</script>\n[bold]'


@pytest.fixture
def mixed(tmp_path: Path) -> RunData:
    """A champion, a failed confirmation, a duplicate, a loser, and two failures."""
    outcomes = [
        ok(1.5),
        failed(OutcomeKind.COMPILE_ERROR, HOSTILE),
        ok(1.2, 1.1, 1.3, flags=("suspicious",)),
        ok(1.2, duplicate_of=2),
        ok(0.5),
        failed(OutcomeKind.TIMEOUT, "10 s"),
    ]
    confirmations = {
        0: failed(OutcomeKind.WRONG_RESULT, "held out"),
        2: ok(1.25, 1.2, 1.3, held_out=("500x64",), max_error=2e-4),
    }
    return RunData.load(make_run(tmp_path, outcomes, confirmations=confirmations))


def json_report(data: RunData) -> Json:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text_of("json", data), parse_constant=refuse)


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_json_holds_the_run_its_environment_its_baseline_and_every_trial(mixed: RunData) -> None:
    report = json_report(mixed)
    assert list(report) == ["run", "environment", "baseline", "trials"]
    assert report["run"]["id"] == mixed.id
    assert report["run"]["state"] == "finished:trials"
    assert report["run"]["cases"] == list(CASES)
    assert report["run"]["held_out_cases"] == ["500x64"]
    assert report["environment"]["packages"] == {"torch": "2.9.0"}
    assert report["baseline"]["chosen"] == dict.fromkeys(CASES, "sdpa:flash")
    assert [trial["number"] for trial in report["trials"]] == list(range(6))


def test_a_confirmed_trial_reports_the_confirmations_figures(mixed: RunData) -> None:
    trial = json_report(mixed)["trials"][2]
    assert trial["confirmed"] is True
    assert trial["rank"] == 1
    assert trial["speedup"] == pytest.approx(1.25)
    assert (trial["speedup_low"], trial["speedup_high"]) == pytest.approx((1.2, 1.3))
    assert trial["search_speedup"] == pytest.approx(1.2)
    assert trial["time_us"] == pytest.approx(1000 / 1.25)
    assert (trial["error"], trial["error_limit"]) == (2e-4, 2e-3)
    assert trial["flags"] == ["suspicious"]
    assert [m["case"] for m in trial["measurements"]] == [*CASES, "500x64"]


def test_a_failed_confirmation_is_a_failure_to_every_script(mixed: RunData) -> None:
    trial = json_report(mixed)["trials"][0]
    assert trial["outcome"] == "wrong_result"
    assert trial["reason"] == "in confirmation: held out"
    assert trial["search_outcome"] == "ok"
    assert (trial["rank"], trial["speedup"], trial["confirmed"]) == (None, None, False)


def test_a_duplicate_shares_its_twins_verdict_but_holds_no_rank(mixed: RunData) -> None:
    trial = json_report(mixed)["trials"][3]
    assert (trial["duplicate_of"], trial["rank"], trial["confirmed"]) == (2, None, True)
    assert trial["speedup"] == pytest.approx(1.25)


def test_a_failed_trial_keeps_its_reason_and_stage_times(mixed: RunData) -> None:
    trial = json_report(mixed)["trials"][1]
    assert (trial["outcome"], trial["reason"]) == ("compile_error", HOSTILE)
    assert trial["stage_s"] == {"compile": 2.0}
    assert trial["finished_s"] == 4.0
    assert trial["log"] == f"log of {HOSTILE}"


def test_jsonl_is_the_jsons_trials_one_a_line(mixed: RunData) -> None:
    lines = text_of("jsonl", mixed).splitlines()
    assert [json.loads(line) for line in lines] == json_report(mixed)["trials"]


def test_csv_lists_the_leaderboard_first_and_every_other_trial_after(mixed: RunData) -> None:
    rows = csv_rows(text_of("csv", mixed))
    assert [(row["rank"], row["trial"]) for row in rows] == [
        *(("1", "2"), ("2", "4")),
        *(("", "0"), ("", "1"), ("", "3"), ("", "5")),
    ]


def test_csv_columns_are_the_documented_ones(mixed: RunData) -> None:
    (header, *_) = csv.reader(io.StringIO(text_of("csv", mixed)))
    figures = [
        f"{figure}.{case}"
        for case in (*CASES, "500x64")
        for figure in ("time_us", "speedup", "baseline")
    ]
    assert header == [
        *("rank", "trial", "outcome", "reason", "speedup", "speedup_low", "speedup_high"),
        *("time_us", "error", "error_limit", "confirmed", "flags", "duplicate_of", "finished_s"),
        *("stage_s.compile", "stage_s.verify", "stage_s.measure"),
        "resource.code_bytes",
        *figures,
        *("param.BLOCK_M", "param.UNROLL", "param.PACK"),
    ]


def test_csv_values_are_exact_and_missing_ones_empty(mixed: RunData) -> None:
    row = csv_rows(text_of("csv", mixed))[0]
    assert float(row["speedup"]) == pytest.approx(1.25)
    assert (row["param.BLOCK_M"], row["param.PACK"]) == ("64", "True")
    assert row["baseline.500x64"] == "sdpa:flash"
    assert row["resource.code_bytes"] == "4096"
    assert (row["duplicate_of"], row["reason"]) == ("", "")


def test_csv_neutralises_formulas(mixed: RunData) -> None:
    row = next(row for row in csv_rows(text_of("csv", mixed)) if row["trial"] == "1")
    assert row["reason"].startswith("'=HYPERLINK")
    assert "\x1b" not in row["reason"]


def test_csv_keeps_the_signs_of_numbers_and_guards_text_values(tmp_path: Path) -> None:
    configurations = {0: {"OFFSET": -3, "MODE": "-fast"}}
    data = RunData.load(make_run(tmp_path, [ok(1.0)], configurations=configurations))
    (row,) = csv_rows(text_of("csv", data))
    assert (row["param.OFFSET"], row["param.MODE"]) == ("-3", "'-fast")


def test_markdown_tells_the_result_the_ties_and_the_failures(mixed: RunData) -> None:
    page = text_of("md", mixed)
    assert "Best of 6 trials: 1.250x \\[1.200, 1.300\\] over the baseline" in page
    assert "| 512x64 | sdpa:math | 2500 | yes |  |" in page
    assert "## Failed confirmations" in page
    assert "| 0 | wrong\\_result | in confirmation: held out |" in page
    assert "+1 duplicate" in page


def test_beside_the_baselines_stands_what_their_times_do_not_tell(
    mixed: RunData, tmp_path: Path
) -> None:
    note = "Do not divide their times by times of the leaderboard"
    _, _, below = text_of("md", mixed).partition("## Baselines")
    assert note in below.partition("| case |")[0]
    nothing = RunData.load(make_run(tmp_path, [], name="none", meta={"baselines": None}))
    assert note not in text_of("md", nothing)


def test_hostile_text_cannot_leave_its_markdown_cell(mixed: RunData) -> None:
    page = text_of("md", mixed)
    assert "\x1b" not in page
    assert "<script" not in page
    (line,) = [line for line in page.splitlines() if "HYPERLINK" in line]
    assert len(re.findall(r"(?<!\\)\|", line)) == 4


def test_a_recorded_run_reports_times_and_no_speedup(tmp_path: Path) -> None:
    outcomes = [recorded(2.0), recorded(0.5), failed(OutcomeKind.COMPILE_ERROR)]
    meta: Mapping[str, Json] = {"kind": "recorded", "baselines": None, "problem": {}}
    data = RunData.load(make_run(tmp_path, outcomes, meta=meta))
    best = json_report(data)["trials"][1]
    assert (best["rank"], best["time_us"], best["speedup"]) == (1, 500.0, None)
    page = text_of("md", data)
    assert "Best of 3 trials: 0.5000 ms (recorded), trial 1." in page
    assert "| rank | trial | time ms |" in page


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("outcomes", [[], [failed(OutcomeKind.NAN)] * 3], ids=["empty", "failed"])
def test_a_run_without_a_valid_trial_still_makes_every_report(
    tmp_path: Path, name: str, outcomes: list[Outcome]
) -> None:
    data = RunData.load(make_run(tmp_path, outcomes))
    text = text_of(name, data)
    if name == "md":
        assert f"No valid candidate in {len(outcomes)} trials." in text
    if name == "csv":
        assert len(csv_rows(text)) == len(outcomes)
    if name in LEADERBOARDS:
        assert LEADERBOARDS[name](data, 10) is not None


def test_a_leaderboard_keeps_its_order_and_its_limit(mixed: RunData) -> None:
    assert [row["number"] for row in json.loads(LEADERBOARDS["json"](mixed, 10))] == [2, 4]
    assert len(LEADERBOARDS["jsonl"](mixed, 1).splitlines()) == 1
    assert [row["trial"] for row in csv_rows(LEADERBOARDS["csv"](mixed, 1))] == ["2"]
    assert len(LEADERBOARDS["md"](mixed, 1).splitlines()) == 3


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    nan = Check(CASES[0], "normal", "failed", math.nan, 1e-3, math.inf, 1e-4)
    outcome = Outcome(OutcomeKind.NAN, checks=(nan,))
    data = RunData.load(make_run(tmp_path, [outcome]))
    (trial,) = json_report(data)["trials"]
    assert trial["error"] is None
    assert trial["checks"][0]["rms_error"] is None


@pytest.mark.parametrize("text", ['{"cut', "[1]", '{"packages": 5}'])
def test_a_lost_environment_is_stated_and_the_report_goes_on(tmp_path: Path, text: str) -> None:
    data = RunData.load(make_run(tmp_path, [ok(1.0)], environment=text))
    assert text_of("md", data)
    assert "environment.json" in json_report(data)["environment"]["unreadable"]


def test_a_damaged_record_is_a_store_error(tmp_path: Path) -> None:
    run = make_run(tmp_path, [ok(1.0)], confirmations={0: ok(1.0)})
    with sqlite3.connect(run.store) as connection:
        connection.execute('UPDATE confirmations SET outcome = \'{"kind": "odd"}\'')
    connection.close()
    with pytest.raises(StoreError, match="damaged"):
        RunData.load(run)


def test_reports_start_without_torch_or_pandas() -> None:
    program = (
        "import sys, evotune.report.formats, evotune.report.summary\n"
        "print([name for name in ('torch', 'pandas', 'deap') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_eager_times_have_columns_only_where_they_were_taken(tmp_path: Path) -> None:
    eager = msgspec.structs.replace(ok(1.5).measurements[0], eager_us=12.5, eager_baseline_us=31.0)
    champion = msgspec.structs.replace(ok(1.5), measurements=(eager, *ok(1.5).measurements[1:]))
    run = make_run(tmp_path, [ok(1.5)], confirmations={0: champion})
    data = RunData.load(run)
    (row,) = csv_rows(text_of("csv", data))
    assert row[f"eager_us.{CASES[0]}"] == "12.5"
    assert row[f"eager_baseline_us.{CASES[0]}"] == "31.0"
    assert [name for name in row if name.startswith("eager")] == [
        f"eager_us.{CASES[0]}",
        f"eager_baseline_us.{CASES[0]}",
    ]
    first, second = json_report(data)["trials"][0]["measurements"]
    assert (first["eager_us"], first["eager_baseline_us"]) == (12.5, 31.0)
    assert second["eager_us"] is None
    plain = RunData.load(make_run(tmp_path / "plain", [ok(1.5)]))
    assert "eager" not in text_of("csv", plain)


def test_warnings_and_the_times_of_confirmations_are_on_the_page(tmp_path: Path) -> None:
    race = Check("edge shapes", "compute-sanitizer racecheck", "failed", detail="306 errors")
    champion = msgspec.structs.replace(ok(1.5), checks=(race,), flags=("racecheck",))
    page = text_of("md", RunData.load(make_run(tmp_path, [ok(1.5)], confirmations={0: champion})))
    assert "- Trial 0: compute-sanitizer racecheck: 306 errors" in page
    assert "| stage | confirmations | sum s | median |" in page
    assert "| measure | 1 | 0.5 | 500.0 ms |" in page


def test_parquet_has_the_columns_and_rows_of_the_csv_with_their_types(mixed: RunData) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet")
    columns = run_columns(mixed)
    table = pyarrow.read_table(io.BytesIO(to_parquet(dict(columns))))
    assert table.column_names == list(columns)
    assert table.num_rows == len(mixed.trials)
    kinds = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert kinds["trial"] == "int64"
    assert kinds["speedup"] == "double"
    assert kinds["confirmed"] == "bool"
    assert kinds["param.BLOCK_M"] == "int64"
    assert kinds["param.PACK"] == "bool"
    rows = {row["trial"]: row for row in table.to_pylist()}
    assert (rows[1]["outcome"], rows[1]["reason"], rows[1]["speedup"]) == (
        "compile_error",
        HOSTILE,
        None,
    )


def test_t4_holds_every_trial_in_the_community_schemas_words(mixed: RunData) -> None:
    found = json.loads(text_of("t4", mixed))
    assert list(found) == ["schema_version", "results"]
    assert found["schema_version"] == "1.0.0"
    assert [result["invalidity"] for result in found["results"]] == [
        *("correctness", "compile", "correct", "correct", "correct", "timeout"),
    ]
    for result in found["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= result.keys()
        assert all(isinstance(value, int | float) for value in result["times"].pop("runtimes"))
        assert all(isinstance(value, int | float) for value in result["times"].values())
        assert all({"name", "value", "unit"} == m.keys() for m in result["measurements"])
    best = found["results"][2]
    assert best["timestamp"] == "2030-01-02T03:04:11+00:00"
    assert best["times"]["compilation_time"] == 1000.0
    values = {m["name"]: (m["value"], m["unit"]) for m in best["measurements"]}
    assert values["time"] == (pytest.approx(0.8), "ms")
    assert values["speedup"] == (pytest.approx(1.25), "")
    failure = {m["name"]: m["value"] for m in found["results"][1]["measurements"]}
    assert (failure["outcome"], failure["reason"]) == ("compile_error", HOSTILE)
