from __future__ import annotations

import dataclasses
import io
import math

import msgspec
import pytest
from report.runs import configuration, failed, ok, recorded
from rich.console import Console
from rich.text import Text

from evotune.cli.progress import LiveProgress, PlainProgress, Standing, panel, sparkline
from evotune.runs.observer import CONFIRMING, Progress, RunInfo
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def info(*, done: int = 0, minutes: float | None = None) -> RunInfo:
    return RunInfo("id", "runs/id", "space", "CPU", "evolution", 3, 8, 100, minutes, done)


def trial(number: int, outcome: Outcome) -> Trial:
    return Trial(number, Configuration(configuration(number)), outcome)


def progress(told: int, best: Trial | None, elapsed_s: float = 10.0) -> Progress:
    return Progress(told, elapsed_s, told // 8, best)


def test_a_new_best_is_a_line_with_what_it_changes() -> None:
    lines: list[str] = []
    plain = PlainProgress(lines.append, Clock())
    plain.started(info())
    first, second, third = trial(0, ok(1.2)), trial(1, ok(1.1)), trial(4, ok(1.5))
    plain.told(first, progress(1, first))
    plain.told(second, progress(2, first))
    plain.told(third, progress(3, third))
    assert lines == [
        "space on CPU: evolution, seed 3",
        "new best: 1.200x [1.188, 1.212] (trial 0): BLOCK_M=16 UNROLL=0 PACK=true",
        "new best: 1.500x [1.485, 1.515] (trial 4): UNROLL=4",
    ]


def test_no_plain_line_is_wider_than_a_log_viewer() -> None:
    lines: list[str] = []
    plain = PlainProgress(lines.append, Clock())
    plain.phase("baselines: " + ", ".join(f"sdpa:flash for (1,8,{n},64) full" for n in range(9)))
    wide = Trial(0, Configuration({f"PARAMETER_{n}": n for n in range(30)}), ok(1.2))
    plain.told(wide, progress(1, wide))
    plain.confirmed(wide, failed(OutcomeKind.NAN, "far off " * 40))
    assert max(map(len, lines)) < 120
    assert "PARAMETER_29=29" in " ".join(lines)
    assert all(line.startswith("  ") for line in lines if "PARAMETER_29" in line)


def test_a_resumed_run_counts_its_stored_trials_without_a_line_for_each() -> None:
    lines: list[str] = []
    clock = Clock()
    plain = PlainProgress(lines.append, clock)
    plain.started(info(done=3))
    for number in range(4):
        clock.now_s += 60.0
        told = trial(number, ok(1.0 + number))
        plain.told(told, progress(number + 1, told))
    assert lines[1:] == [
        "3 trials are stored already",
        "so far: 3 ok; best 3.000x [2.970, 3.030] (trial 2): BLOCK_M=64 UNROLL=2 PACK=true",
        "new best: 4.000x [3.960, 4.040] (trial 3): BLOCK_M=128 UNROLL=3 PACK=false",
    ]


def test_stored_trials_that_a_snapshot_stands_for_are_not_passed_off_as_counted() -> None:
    standing = Standing(Clock(), info(done=1001))
    best = trial(3, ok(2.0))
    assert not standing.tell(trial(1000, failed(OutcomeKind.NAN)), progress(1001, best))
    assert standing.counts() == "1 nan (1000 earlier ones not counted)"


def test_a_quiet_stretch_gets_a_line_every_ten_seconds() -> None:
    lines: list[str] = []
    clock = Clock()
    plain = PlainProgress(lines.append, clock)
    plain.started(info())
    for number in range(30):
        clock.now_s = float(number)
        plain.told(trial(number, failed(OutcomeKind.NAN)), progress(number + 1, None, clock.now_s))
    assert lines[1:] == [
        "generation 1, trial 11/100, 66/min, 1 min 21 s left; 11 nan; best none yet",
        "generation 2, trial 21/100, 63/min, 1 min 15 s left; 21 nan; best none yet",
    ]


def test_a_lost_stderr_does_not_end_the_run() -> None:
    def broken(line: str) -> None:
        raise BrokenPipeError

    plain = PlainProgress(broken, Clock())
    plain.started(info())
    plain.phase("searching")
    plain.finished("trials", 1.0)


def test_time_left_is_the_nearer_of_both_budgets() -> None:
    clock = Clock()
    standing = Standing(clock, dataclasses.replace(info(minutes=0.5), elapsed_s=10.0))
    standing.tell(trial(0, ok(1.0)), progress(1, None, 10.0))
    clock.now_s = 5.0
    assert "15 s left" in standing.pace()


def test_time_left_counts_the_confirmation_of_champions() -> None:
    standing = Standing(Clock(), dataclasses.replace(info(), champions=3))
    standing.tell(trial(0, ok(1.0)), progress(50, None, 10.0))
    assert "1 min 10 s left" in standing.pace()
    standing.confirmed[0] = ok(1.0)
    assert "50 s left" in standing.pace()


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (ok(1.5), "confirmed trial 4: 1.500x [1.485, 1.515]"),
        (
            failed(OutcomeKind.NAN, "held out"),
            "trial 4 failed its confirmation: nan held out",
        ),
        (recorded(2.0), "confirmed trial 4: 2.000 ms"),
    ],
)
def test_a_confirmation_is_a_line_in_both_kinds_of_progress(outcome: Outcome, line: str) -> None:
    lines: list[str] = []
    PlainProgress(lines.append, Clock()).confirmed(trial(4, ok(1.0)), outcome)
    LiveProgress(Standing(Clock()), lines.append).confirmed(trial(4, ok(1.0)), outcome)
    assert lines == [line, line]


def test_steps_of_a_confirmation_are_few_lines_and_all_on_the_live_screen() -> None:
    lines: list[str] = []
    plain = PlainProgress(lines.append, clock := Clock())
    live = LiveProgress(standing := Standing(clock))
    live.started(info())
    plain.phase("confirming the best in fresh processes")
    for number in range(25):
        clock.now_s = float(number)
        text = f"confirming 1 of 3 (trial 4), process 1 of at most 6: random cases {number} of 99"
        for progress_of in (plain, live):
            progress_of.step(text)
            progress_of.step(text)
        assert f"random cases {number} of 99 ({number} s)" in render(standing, 110)
    assert [line.rpartition(": ")[2] for line in lines[1:]] == [
        "random cases 10 of 99",
        "random cases 20 of 99",
    ]


def render(standing: Standing, width: int = 80, encoding: str = "utf-8") -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, markup=False, highlight=False)
    console.print(panel(standing, width, encoding))
    return file.getvalue()


def test_other_work_stays_on_a_live_screen() -> None:
    lines: list[str] = []
    live = LiveProgress(Standing(Clock()), lines.append)
    live.phase("timing the baselines")
    live.phase("times may be disturbed: other processes keep 2.0 of 2 cores busy")
    live.phase("searching")
    assert lines == ["times may be disturbed: other processes keep 2.0 of 2 cores busy"]


def test_the_live_panel_shows_everything_at_a_glance() -> None:
    live = LiveProgress(standing := Standing(clock := Clock()))
    live.started(info())
    clock.now_s = 10.0
    live.phase("searching")
    best = trial(0, ok(1.2))
    live.told(best, progress(1, best))
    live.told(trial(1, failed(OutcomeKind.TIMEOUT)), progress(2, best))
    text = render(standing)
    for words in (
        *("space on CPU: evolution, seed 3", "searching (10 s)", "trial 2/100", "12/min"),
        *("1 ok, 1 timeout", "best      1.200x", "BLOCK_M=16 UNROLL=0 PACK=true", "━"),
    ):
        assert words in text


def test_the_live_panel_sets_what_was_confirmed_beside_what_the_search_saw() -> None:
    live = LiveProgress(standing := Standing(Clock()), lambda line: None)
    live.started(info())
    noisy, steady = trial(0, ok(8.0)), trial(1, ok(1.4))
    live.told(noisy, progress(1, noisy))
    live.told(steady, progress(2, noisy))
    live.confirmed(noisy, ok(1.5))
    live.confirmed(steady, ok(1.6))
    live.confirmed(trial(2, ok(2.0)), failed(OutcomeKind.NAN, "held out"))
    text = render(standing)
    assert "best      8.000x [7.920, 8.080] (trial 0)" in text
    assert "confirmed 1.600x [1.584, 1.616] (trial 1)" in text
    assert "1.500x (trial 0), trial 2 failed" in text


def test_nothing_is_left_of_a_run_that_has_ended() -> None:
    live = LiveProgress(standing := Standing(Clock()))
    live.started(info())
    live.told(trial(0, ok(1.0)), progress(1, None))
    assert " left" in render(standing)
    live.finished("interrupted", 1.0)
    assert " left" not in render(standing)


def test_elapsed_counts_all_sessions_and_ends_at_what_reports_will_say() -> None:
    live = LiveProgress(standing := Standing(clock := Clock()))
    clock.now_s = 100.0  # the user was asked something before the run began
    live.started(dataclasses.replace(info(done=3), elapsed_s=60.0))
    live.phase("timing the baselines")
    clock.now_s += 12.0
    assert "timing the baselines (1 min 12 s)" in render(standing)
    live.told(trial(0, ok(1.0)), progress(4, None))
    live.phase("confirming")
    clock.now_s += 30.0
    assert "confirming (1 min 42 s)" in render(standing)
    live.finished("trials", 103.0)
    clock.now_s += 9.0
    assert "ended: trial budget spent (1 min 43 s)" in render(standing)
    lines: list[str] = []
    PlainProgress(lines.append, Clock()).finished("trials", 103.0)
    assert lines == ["ended: trial budget spent (1 min 43 s)"]


def test_the_live_panel_can_be_drawn_before_anything_is_known() -> None:
    assert "starting" in render(Standing(Clock()))


def test_the_live_panel_fits_eighty_columns_and_shows_curve_elites_device_and_stages() -> None:
    standing = Standing(Clock(), info())
    gpu = {"sm_mhz": 1980, "power_w": 140.4, "temperature_c": 46, "throttled_by": ["sw_power_cap"]}
    best = None
    for number, speedup in enumerate((1.0, 1.2, 0.8, 1.5)):
        outcome = ok(speedup)
        outcome = msgspec.structs.replace(
            outcome,
            measurements=tuple(msgspec.structs.replace(m, state=gpu) for m in outcome.measurements),
        )
        made = Trial(number, Configuration({f"PARAMETER_{n}": number for n in range(20)}), outcome)
        best = made if best is None or speedup > 1 else best
        elites = [(math.log(1.5), made.configuration), (0.0, Configuration({"PARAMETER_1": 7}))]
        standing.tell(made, Progress(number + 1, 10.0, 0, best, elites))
    text = render(standing)
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "so far    1.000x ▁▄▄█ 1.500x",
        "elites    1.500x: the best",
        "1.000x: PARAMETER_1=7",
        "device    SM 1980 MHz, 140 W, 46 °C, clocks lowered by sw_power_cap",
        "time in   compile 4 s, measure 2 s, verify 1 s",
        "PARAMETER_19=3",
    ):
        assert words in text
    assert "1.000x _==@ 1.500x" in render(standing, encoding="ascii")
    assert max(map(len, render(standing, 40).splitlines())) <= 40


def test_a_sparkline_keeps_the_last_of_each_stretch() -> None:
    assert sparkline([math.nan, 1.0, 2.0, 3.0], 4) == " ▁▅█"
    assert len(sparkline(list(range(1000)), 60)) == 60
    assert sparkline(list(range(1000)), 60)[-1] == "█"
    assert sparkline([math.nan], 9) == ""
    assert sparkline([2.0, 2.0], 9) == "▁▁"


def styles(standing: Standing, text: str) -> set[str]:
    """The styles of the panel's lines that hold the text."""
    rows = panel(standing, 100).renderables
    lines = [row for row in rows if isinstance(row, Text) and text in row.plain]
    return {str(span.style) for line in lines for span in line.spans}


@pytest.mark.parametrize(
    ("outcome", "green"), [(ok(1.2), True), (ok(0.9), False), (ok(1.05, 0.95, 1.2), False)]
)
def test_a_speedup_is_green_only_above_one(outcome: Outcome, green: bool) -> None:
    standing = Standing(Clock(), info())
    best = trial(0, outcome)
    standing.tell(best, progress(1, best))
    assert ("bold green" in styles(standing, "best ")) is green
    standing.confirmed[0] = outcome
    assert ("bold green" in styles(standing, "confirmed ")) is green


def test_while_champions_are_confirmed_nothing_is_said_to_be_left() -> None:
    live = LiveProgress(standing := Standing(Clock()), lambda line: None)
    live.started(dataclasses.replace(info(), champions=3))
    best = trial(0, ok(1.2))
    live.phase("searching")
    live.told(best, progress(100, best))
    assert "left" in standing.pace()
    live.phase(f"{CONFIRMING} the best in fresh processes")
    live.step("checking the best side by side")
    assert standing.pace().endswith("/min, confirming")


def test_the_live_panel_uses_the_whole_width() -> None:
    standing = Standing(Clock(), info())
    best = Trial(0, Configuration({f"PARAMETER_{n}": n for n in range(30)}), ok(1.2))
    standing.tell(best, progress(50, best))
    rows = [row.plain for row in panel(standing, 160).renderables if isinstance(row, Text)]
    assert 150 < max(map(len, rows)) < 160
