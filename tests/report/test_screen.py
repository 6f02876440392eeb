from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.report import wording
from evotune.report.data import RunData, Totals, in_order
from evotune.report.html import run_payload
from evotune.report.leaderboard import Figures
from evotune.report.screen import leaderboard_lines, plain
from evotune.store.facts import facts_of
from evotune.trial import Check, Configuration, Json, Outcome, OutcomeKind, Trial

from .runs import META, failed, make_run, ok, recorded, text_of

LONG_CASES = ("(1,8,512,64) full", "(1,8,512,64) causal")


def board(
    outcomes: Sequence[Outcome],
    *,
    confirmations: Mapping[int, Outcome] | None = None,
    configurations: Mapping[int, Mapping[str, int]] | None = None,
    kind: str = "kernel",
    meta: Mapping[str, Json] | None = None,
) -> RunData:
    trials = tuple(
        Trial(n, Configuration((configurations or {}).get(n, {"BLOCK_M": 16, "UNROLL": n})), o)
        for n, o in enumerate(outcomes)
    )
    facts = facts_of({**META, "kind": kind, **(meta or {})})
    totals = Totals(in_order(Counter(outcome.kind for outcome in outcomes)))
    return RunData(
        "20300102-ab12", "runs/20300102-ab12", facts, {}, trials, {}, confirmations or {}, totals
    )


def shown(data: RunData, count: int = 10, width: int = 100) -> str:
    return plain(leaderboard_lines(data, count, width))


def table_rows(text: str) -> list[list[str]]:
    lines = text.split("───\n", 1)[1].split("\n\n", 1)[0]
    return [line.split() for line in lines.splitlines()]


def test_the_whole_view_of_a_run() -> None:
    outcomes = [
        ok(1.5, cases=LONG_CASES),
        ok(1.2, cases=LONG_CASES),
        failed(OutcomeKind.NAN),
        ok(1.195, cases=LONG_CASES),
        ok(1.4, cases=LONG_CASES),
        ok(1.2, cases=LONG_CASES, duplicate_of=1),
    ]
    verdicts = {0: ok(1.45, cases=LONG_CASES), 4: failed(OutcomeKind.WRONG_RESULT, "is off")}
    assert (
        shown(board(outcomes, confirmations=verdicts))
        == """\
attention-cpu on Test CPU: 5 ok, 1 nan of 6 trials; 1 confirmed; 1 failed confirmation
run 20300102-ab12: finished (trial budget spent)

speedup: geometric mean over 2 cases of baseline time / candidate time, with its 95% interval;
  confirmed rows, which were measured again in fresh processes, come first
baseline: sdpa:flash 1000 µs for (1,8,512,64) full; sdpa:flash 1000 µs for (1,8,512,64) causal
  (timed with trial 0)

                                    (1,8,512,64)  (1,8,512,64)  error /
rank  trial          speedup [95%]       full µs     causal µs    limit  confirmed
──────────────────────────────────────────────────────────────────────────────────
  1       0  1.450x [1.435, 1.464]         689.7         689.7       5%  yes
  2=      1  1.200x [1.188, 1.212]         833.3         833.3       5%  no
  2=      3  1.195x [1.183, 1.207]         836.8         836.8       5%  no

= rows of the same rank: overlapping intervals: their times do not distinguish them
trial 4 is out: wrong_result in confirmation: is off

configurations: the leader's, and the others' differences from it
#1 trial 0:  BLOCK_M=16 UNROLL=0
#2= trial 1: UNROLL=1 (same code: trial 5)
#2= trial 3: UNROLL=3
"""
    )


def test_a_recorded_run_shows_times_in_milliseconds_and_claims_no_speedup() -> None:
    outcomes = [recorded(2.0), recorded(0.5), recorded(2.0), failed(OutcomeKind.LAUNCH_ERROR)]
    assert (
        shown(board(outcomes, kind="recorded"))
        == """\
attention-cpu on Test CPU: 3 ok, 1 launch_error of 4 trials
run 20300102-ab12: finished (trial budget spent)

time: as recorded; a recording has no baseline

rank  trial  time ms
────────────────────
  1       1   0.5000
  2=      0    2.000
  2=      2    2.000

= rows of the same rank: equal times

configurations: the leader's, and the others' differences from it
#1 trial 1:  BLOCK_M=16 UNROLL=1
#2= trial 0: UNROLL=0
#2= trial 2: UNROLL=2
"""
    )


def test_without_ties_nothing_is_said_of_them() -> None:
    text = shown(board([ok(2.0), ok(1.0)]))
    assert "=" not in "".join(" ".join(row) for row in table_rows(text))
    assert "same rank" not in text


def test_without_a_confirmation_the_reader_is_told() -> None:
    text = shown(board([ok(2.0), ok(1.0)]))
    assert "no row is confirmed" in " ".join(text.split())
    assert "come first" not in text


def test_a_confirmed_row_stands_above_faster_rows_that_are_not() -> None:
    text = shown(board([ok(3.0), ok(1.2)], confirmations={1: ok(1.1)}))
    assert [row[1] for row in table_rows(text)] == ["1", "0"]
    assert text.index("#1 trial 1:") < text.index("#2 trial 0:")


def test_flags_have_a_column_only_where_there_are_any() -> None:
    assert "flags" not in shown(board([ok(2.0), ok(1.0)]))
    text = shown(board([ok(2.0), ok(1.0, flags=("throttled", "suspicious"))]))
    assert "confirmed  flags\n" in text
    assert table_rows(text)[1][-2:] == ["throttled,", "suspicious"]


def test_rows_beyond_the_count_are_mentioned() -> None:
    outcomes = [ok(1.0 + n / 10) for n in range(6)]
    text = shown(board(outcomes), count=4)
    assert len(table_rows(text)) == 4
    assert "2 more rows: evotune top 20300102-ab12 -n 6" in text
    assert "more row" not in shown(board(outcomes), count=6)


def test_cases_are_numbered_where_their_labels_do_not_fit_and_else_left_to_their_mean() -> None:
    data = board([ok(2.0, cases=[f"shape {n} of a long name" for n in range(3)])])
    assert "long name µs" in shown(data, width=120)
    numbered = shown(data, width=80)
    assert "case 1  case 2  case 3" in numbered
    assert "case 3, shape 2 of a long name" in " ".join(numbered.split())
    mean = shown(data, width=70)
    assert "case" not in mean.split("───")[0].splitlines()[-2]
    assert "mean" in mean
    assert "for shape 2 of a long name" in " ".join(mean.split())


def test_a_case_that_a_row_was_not_timed_on_is_a_dash() -> None:
    text = shown(board([ok(2.0, cases=("a", "b")), ok(1.0, cases=("b",))]))
    assert table_rows(text)[1][5:7] == ["-", "1000"]


@pytest.mark.parametrize(
    ("error", "limit", "text"),
    [
        *((6e-4, 2e-3, "30%"), (1e-6, 2e-3, "<1%"), (0.0, 0.0, "0%"), (2e-3, 2e-3, "100%")),
        *((1e-5, None, "1.0e-05"), (None, 2e-3, "-")),
    ],
)
def test_errors_are_shares_of_their_limit(
    error: float | None, limit: float | None, text: str
) -> None:
    assert wording.error_share_text(Figures(1.0, 1.0, 1.0, 1.0, error, limit)) == text


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        *((5123.0, "5.12 ms"), (87.04, "87.0 µs"), (0.5, "0.500 µs"), (2.5e6, "2.50 s")),
        *((123456.0, "123 ms"), (0.0, "- µs"), (float("inf"), "- s")),
    ],
)
def test_a_time_on_its_own_has_the_unit_that_suits_it(time_us: float, text: str) -> None:
    assert wording.time_text(time_us) == text


def test_many_duplicates_are_counted_rather_than_listed() -> None:
    outcomes = [ok(2.0), *(ok(2.0, duplicate_of=0) for _ in range(8))]
    assert "(same code: trials 1, 2, 3, 4, 5 and 3 more)" in shown(board(outcomes))


def test_what_the_gpu_compiler_tells_stands_beside_the_configuration() -> None:
    resources = {"registers": 159, "spill_bytes": 0, "occupancy": 0.25}
    spilling = {"registers": 255, "spill_bytes": 24, "occupancy": 0.125}
    outcomes = [
        msgspec.structs.replace(ok(2.0), resources=resources),
        msgspec.structs.replace(ok(1.5), resources=spilling),
    ]
    text = " ".join(shown(board(outcomes)).split())
    assert "BLOCK_M=16 UNROLL=0 (159 registers, no spills, 25% occupancy)" in text
    assert "UNROLL=1 (255 registers, 24 bytes of spills, 12% occupancy)" in text


def test_a_finding_that_does_not_disqualify_is_a_warning_beside_its_row() -> None:
    check = Check("edge shapes", "compute-sanitizer racecheck", "failed", detail="306 errors: …")
    warned = msgspec.structs.replace(ok(2.0), flags=("racecheck",), checks=(check,))
    text = shown(board([ok(1.0), warned], confirmations={1: warned}))
    assert "warning: trial 1: compute-sanitizer racecheck: 306 errors: …" in text
    assert table_rows(text)[0][-2:] == ["yes", "racecheck"]
    assert "warning" not in shown(board([ok(1.0), ok(2.0)]))


def test_a_run_without_rows_says_why() -> None:
    outcomes = [failed(OutcomeKind.TIMEOUT), *[failed(OutcomeKind.NAN, "in out")] * 2]
    text = shown(board(outcomes))
    assert "2 nan, 1 timeout of 3 trials\n" in text
    assert "no valid candidate\n2 ended in nan: in out\n" in text
    assert "no trials yet" in shown(board([]))


@pytest.mark.parametrize(("error", "hinted"), [(3e-8, True), (1.0, False)])
def test_errors_near_the_limit_of_an_own_problem_lead_to_the_yardstick(
    error: float, hinted: bool
) -> None:
    check = Check("(4096,1024)", "normal", "failed", error, 1e-8, 1e-9, 1e-9, "out is off")
    wrong = msgspec.structs.replace(failed(OutcomeKind.WRONG_RESULT, "out is off"), checks=(check,))
    own = {"problem": {"name": "problem.py:Softmax", "dtype": "float32"}}
    assert ("yardstick_of" in shown(board([wrong], meta=own))) == hinted
    assert "yardstick_of" not in shown(board([wrong]))  # attention has its own yardstick


@pytest.mark.parametrize("style", ["screen", "md", "html"])
def test_a_problems_own_tolerance_is_repeated_with_its_reason(tmp_path: Path, style: str) -> None:
    tolerance = "relative 0.01: weights are kept in bfloat16"
    own = {"problem": {"name": "problem.py:Own", "dtype": "float32", "tolerance": tolerance}}
    data = RunData.load(make_run(tmp_path, [ok(1.5)], meta=own))
    texts = {
        "screen": lambda: shown(data),
        "md": lambda: text_of("md", data),
        "html": lambda: str(run_payload(data)),
    }
    text = texts[style]()
    assert tolerance in " ".join(text.split())


def test_what_compilers_said_stays_on_the_screen_and_harmless(tmp_path: Path) -> None:
    reason = "\x1b[2J" + "long words of a compiler " * 20
    run = make_run(tmp_path, [ok(1.0)], confirmations={0: failed(OutcomeKind.NAN, reason)})
    text = shown(RunData.load(run))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


@given(
    st.integers(72, 220),
    st.integers(1, 8),
    st.integers(1, 12),
    st.lists(st.floats(0.01, 90.0), min_size=1, max_size=12),
)
@settings(derandomize=True, max_examples=60)
def test_no_line_is_wider_than_the_screen(
    width: int, cases: int, count: int, speedups: list[float]
) -> None:
    labels = [f"({n},16,4096,128) causal" for n in range(cases)]
    values = {n: {f"PARAMETER_{p}": n * p for p in range(20)} for n in range(len(speedups))}
    data = board([ok(s, cases=labels) for s in speedups], configurations=values)
    text = shown(data, count, width)
    assert max(map(len, text.splitlines())) <= width
    assert "PARAMETER_19=" in text
