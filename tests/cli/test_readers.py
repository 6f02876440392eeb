from __future__ import annotations

import csv
import errno
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from report.runs import failed, make_run, ok, recorded
from runs.runs import recorded_space

from evotune.cli.readers import report, top
from evotune.report.formats import LEADERBOARDS, REPORTS
from evotune.runs.folder import list_runs
from evotune.trial import OutcomeKind
from tests.patience import PATIENCE_S

from .conftest import ROOT, Invoke, start


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    outcomes = [
        ok(1.5),
        ok(1.2),
        failed(OutcomeKind.COMPILE_ERROR, "[red]x[/red] \x1b[2J"),
        ok(1.2, duplicate_of=1),
    ]
    confirmations = {0: failed(OutcomeKind.NAN, "[bold]NaN"), 1: ok(1.25)}
    make_run(tmp_path / "runs", outcomes, confirmations=confirmations)
    return tmp_path / "runs"


def test_top_shows_the_ranking_and_why_a_champion_is_out(invoke: Invoke, runs: Path) -> None:
    output = invoke("top", "latest").output
    assert "attention-cpu on Test CPU: 3 ok, 1 compile_error of 4 trials" in output
    (row,) = [line for line in output.splitlines() if "1.250x" in line]
    assert "[1.238, 1.262]" in row
    assert "5%  yes" in row
    assert "(same code: trial 3)" in output
    assert "trial 0 is out: nan in confirmation: [bold]NaN" in output
    assert "\x1b" not in output
    assert not any(line.endswith(" ") for line in output.splitlines())


def width(text: str) -> int:
    return max(map(len, text.splitlines()))


def test_top_fits_the_columns_asked_for_and_100_where_there_is_no_screen(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {f"PARAMETER_{n}": n for n in range(40)}
    make_run(tmp_path / "runs", [ok(1.0)], configurations={0: values})
    for command in ("top", "status"):
        assert 90 < width(invoke(command, "latest").output) <= 100
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        output = invoke("top", "latest").output
        assert columns - 20 < width(output) <= columns
        assert "PARAMETER_39=39" in output
    invoke("top", "latest", "-o", tmp_path / "out")
    assert (tmp_path / "out").read_text() == output


@pytest.mark.parametrize("columns", ["", "0", "-5", "wide"])
def test_columns_that_make_no_sense_are_ignored(
    invoke: Invoke, runs: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    usual = invoke("top", "latest").output
    monkeypatch.setenv("COLUMNS", columns)
    assert invoke("top", "latest").output == usual


def test_colours_leave_the_layout_as_it_is(invoke: Invoke, runs: Path) -> None:
    colored = invoke("--color", "always", "top", "latest").output
    bare = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert bare != colored
    assert bare == invoke("top", "latest").output


def test_a_leaderboard_in_words_needs_neither_pandas_nor_an_engine(runs: Path) -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from evotune.cli.main import application\n"
        "for command in ('top', 'status'):\n"
        "    result = CliRunner().invoke(application, [command, 'latest'])\n"
        "    assert result.exit_code == 0, result.output\n"
        "    heavy = ('torch', 'numpy', 'pandas', 'deap', 'pydantic', 'yaml', 'rich.table')\n"
        "    print(command, [name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=runs.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["top []", "status ['rich.table']"]


def test_color_always_colours_and_never_does_not(
    invoke: Invoke, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[" in invoke("--color", "always", "top", "latest").output
    assert "\x1b[" in invoke("top", "latest", "--color", "always").output
    assert "\x1b[" not in invoke("top", "latest", "--color", "never").output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in invoke("top", "latest").output


@pytest.mark.parametrize("style", ["table", "json", "jsonl", "csv", "md"])
def test_a_file_holds_what_stdout_would(
    invoke: Invoke, runs: Path, tmp_path: Path, style: str
) -> None:
    shown = invoke("top", "latest", "--format", style)
    written = invoke("top", "latest", "--format", style, "-o", tmp_path / "out")
    assert (written.exit_code, written.output) == (0, "")
    assert (tmp_path / "out").read_text() == shown.output


def test_top_shows_all_rows_where_more_are_asked_for(invoke: Invoke, runs: Path) -> None:
    assert invoke("top", "latest", "-n", 10**30).output == invoke("top", "latest").output


def test_top_in_json_is_the_ranked_records(invoke: Invoke, runs: Path) -> None:
    (row,) = json.loads(invoke("top", "latest", "--format", "json").output)
    assert (row["number"], row["rank"], row["confirmed"]) == (1, 1, True)


def test_report_is_markdown_unless_told_otherwise(invoke: Invoke, runs: Path) -> None:
    output = invoke("report", "latest").output
    assert output.startswith("# attention-cpu: run 20300102-030405-attention-cpu-ab12\n")
    assert "\x1b" not in output


def test_report_in_csv_has_every_trial(invoke: Invoke, runs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(invoke("report", "2030", "--format", "csv").output)))
    assert [row["trial"] for row in rows] == ["1", "0", "2", "3"]


def test_a_report_deletes_no_file_that_it_could_not_open(
    invoke: Invoke, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.csv"
    path.write_text("mine")
    opened = Path.open

    def refusing(self: Path, mode: str = "r", **options: Any) -> Any:
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(self, mode, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refusing)
        result = invoke("report", "latest", "--format", "csv", "-o", path)
    assert (result.exit_code, result.stderr.count("cannot write")) == (2, 1)
    assert path.read_text() == "mine"


def test_half_a_report_leaves_no_file(
    invoke: Invoke, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(data: object) -> Iterator[str]:
        yield "half"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(REPORTS, "csv", full)
    result = invoke("report", "latest", "--format", "csv", "-o", tmp_path / "results.csv")
    assert result.exit_code == 2
    assert not (tmp_path / "results.csv").exists()


def test_a_report_that_ctrl_c_ends_leaves_the_earlier_one(
    invoke: Invoke, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(data: object) -> Iterator[str]:
        yield "half" * 100_000
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setitem(REPORTS, "csv", interrupted)
    files = sorted(tmp_path.iterdir())
    assert invoke("report", "latest", "--format", "csv", "-o", tmp_path / "new").exit_code == 130
    assert sorted(tmp_path.iterdir()) == files
    (tmp_path / "old").write_text("whole")
    assert invoke("report", "latest", "--format", "csv", "-o", tmp_path / "old").exit_code == 130
    assert (tmp_path / "old").read_text() == "whole"
    assert sorted(tmp_path.iterdir()) == sorted([*files, tmp_path / "old"])


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("html", "an HTML report is too large for a terminal: name a file with -o FILE"),
        ("parquet", "this format is binary: name a file with -o FILE"),
    ],
)
def test_a_report_that_is_no_text_is_not_written_to_a_terminal(
    runs: Path, style: str, words: str
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "evotune", "report", "latest", "--format", style]
    done = subprocess.run(
        command, cwd=runs.parent, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=theirs, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    shown, _, _ = select.select([ours], [], [], 0)
    os.close(theirs)
    os.close(ours)
    assert (done.returncode, done.stderr) == (2, f"error: {words}\n")
    assert not shown


def test_parquet_without_its_package_is_a_problem_of_the_machine(
    invoke: Invoke, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = invoke("report", "latest", "--format", "parquet", "-o", tmp_path / "out")
    words = "error: parquet needs pyarrow; get it with: pip install 'evotune[parquet]'\n"
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", words)
    assert not (tmp_path / "out").exists()


def test_the_commands_offer_every_format_there_is() -> None:
    offered = {
        command.name: set(option.type.choices)
        for command in (report, top)
        for option in command.params
        if isinstance(option.type, click.Choice) and option.name == "style"
    }
    assert offered == {"report": {"html", "parquet", *REPORTS}, "top": {"table", *LEADERBOARDS}}


def test_status_says_in_words_what_became_of_a_run(invoke: Invoke, runs: Path) -> None:
    output = invoke("status", "latest").output
    for words in (
        *("finished (trial budget spent)", "Test CPU", "evolution, seed 7", "4 of 100"),
        *("trials per minute", "1 (1 failed)", "compile_error", "BLOCK_M=32 UNROLL=1 PACK=false"),
    ):
        assert words in output


def test_status_has_the_same_figures_in_json(invoke: Invoke, runs: Path) -> None:
    found = json.loads(invoke("status", "latest", "--format", "json").output)
    assert found["outcomes"] == {"ok": 3, "compile_error": 1}
    assert (found["state"], found["holder"], found["best"]["number"]) == (
        "finished:trials",
        None,
        1,
    )


def test_status_without_a_run_lists_them_all_the_newest_last(
    invoke: Invoke, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(runs, [ok(1.2)], name="20310101-000000-b", meta={"state": "interrupted"})
    make_run(runs, [recorded(0.5)], name="20320101-000000-c", meta={"kind": "recorded"})
    damaged = make_run(runs, [ok(1.0)], name="20330101-000000-d")
    damaged.store.write_bytes(b"SQLite format 3" + bytes(4000))
    monkeypatch.setenv("COLUMNS", "80")
    result = invoke("status")
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    first, second, third, fourth = (
        re.split(r" {2,}", line) for line in result.output.splitlines()[-4:]
    )
    assert first[1:] == ["finished", "4/100", "1.250x"]
    assert second == ["20310101-000000-b", "interrupted", "1/100", "1.200x (search)"]
    assert third[1:] == ["finished", "1/100", "0.5000 ms"]
    assert fourth[:2] == ["20330101-000000-d", "damaged"]
    found = json.loads(invoke("status", "--format", "json").output)
    assert [run["best"]["speedup"] for run in found[:2]] == [pytest.approx(s) for s in (1.25, 1.2)]
    assert found[3].keys() == {"id", "path", "error"}


def test_status_of_a_folder_without_runs_says_so(invoke: Invoke) -> None:
    result = invoke("status")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no runs in runs" in result.stderr
    assert json.loads(invoke("status", "--format", "json").stdout) == []


def test_a_run_without_a_valid_candidate_names_its_most_frequent_failure(
    invoke: Invoke, tmp_path: Path
) -> None:
    outcomes = [failed(OutcomeKind.TIMEOUT, "10 s"), *[failed(OutcomeKind.NAN, "in out")] * 2]
    make_run(tmp_path / "runs", outcomes)
    result = invoke("top", "latest")
    assert result.exit_code == 0
    assert "no valid candidate\n2 ended in nan: in out\n" in result.output


@pytest.mark.parametrize("command", ["status", "top", "report"])
def test_an_empty_run_is_no_error(invoke: Invoke, tmp_path: Path, command: str) -> None:
    make_run(tmp_path / "runs", [])
    assert invoke(command, "latest").exit_code == 0


def test_a_recorded_run_shows_times(invoke: Invoke, tmp_path: Path) -> None:
    make_run(tmp_path / "runs", [recorded(2.0), recorded(0.5)], meta={"kind": "recorded"})
    assert "0.5000" in invoke("top", "latest").output
    assert "0.5000 ms" in invoke("status", "latest").output


def test_runs_are_found_by_path_and_in_another_folder(invoke: Invoke, tmp_path: Path) -> None:
    run = make_run(tmp_path / "elsewhere", [ok(1.0)])
    assert invoke("top", run.path).exit_code == 0
    assert invoke("top", "2030", "--runs-dir", "elsewhere").exit_code == 0


def test_a_beginning_that_fits_two_runs_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    for name in ("20300102-a", "20300103-b"):
        make_run(tmp_path / "runs", [ok(1.0)], name=name)
    result = invoke("top", "2030")
    assert result.exit_code == 2
    assert "'2030' fits 2 runs: 20300102-a, 20300103-b" in result.stderr


@pytest.mark.parametrize("command", ["status", "top", "report", "resume"])
def test_a_damaged_store_ends_with_4_and_one_line(
    invoke: Invoke, tmp_path: Path, command: str
) -> None:
    run = make_run(tmp_path / "runs", [ok(1.0)])
    run.store.write_bytes(b"not a database, but long enough to be looked at" * 100)
    result = invoke(command, "latest")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("error: the store")


def test_resuming_a_run_that_is_worked_on_ends_with_5_and_the_process(
    invoke: Invoke, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "runs", [ok(1.0)])
    with run.locked():
        result = invoke("resume", "latest")
    assert result.exit_code == 5
    assert "is being worked on by process" in result.stderr


@pytest.mark.soak
def test_watching_follows_a_run_from_another_process_to_its_end(
    invoke: Invoke, tmp_path: Path
) -> None:
    space = recorded_space(tmp_path / "space", delay_ms=20)
    process = start("run", space, "--trials", 60, cwd=tmp_path)
    while not list_runs(tmp_path / "runs"):
        time.sleep(0.01)
        assert process.poll() is None
    watching = start("status", "latest", "--watch", cwd=tmp_path)
    output, lines = watching.communicate(timeout=PATIENCE_S)
    process.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 0
    assert lines.splitlines()[0].startswith("recorded-test on ")
    assert "new best: " in lines
    assert "ended: finished (trial budget spent)" in lines
    assert "60 of 60" in output


def test_a_page_takes_several_runs_and_everything_else_takes_one(
    invoke: Invoke, runs: Path, tmp_path: Path
) -> None:
    done = invoke("report", "latest", "2030", "--format", "html", "-o", "page.html")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    refused = invoke("report", "latest", "2030", "--format", "csv")
    assert refused.exit_code == 2
    assert "--format csv takes one run" in refused.stderr


def test_watching_a_finished_run_shows_it_once(invoke: Invoke, runs: Path) -> None:
    result = invoke("status", "--watch")  # the latest
    assert result.exit_code == 0
    assert "so far: " in result.stderr
    assert "confirmed trial 1: 1.250x" in result.stderr
    assert "ended: finished (trial budget spent)" in result.stderr


def test_status_tells_the_threads_and_why_champions_are_missing(
    invoke: Invoke, tmp_path: Path
) -> None:
    device = {"name": "A CPU", "backend": "cpu", "arch": "x86_64-avx2"}
    device |= {"attributes": {"threads": 1, "cores": 8}}  # type: ignore[dict-item]
    why = "confirming ended after 90 s, which is as long as it may take: 1 of 3 confirmed"
    make_run(tmp_path / "runs", [ok(1.5)], meta={"device": device, "unconfirmed": why})
    words = " ".join(invoke("status", "latest").stdout.split())
    assert "device A CPU, 1 thread " in words
    assert f"missing {why}" in words
    assert json.loads(invoke("status", "latest", "--format", "json").stdout)["threads"] == 1


def test_status_names_other_work_on_the_machine(invoke: Invoke, tmp_path: Path) -> None:
    work = [f"another evotune run is measuring (process {n})" for n in range(4)]
    make_run(tmp_path / "runs", [ok(1.5)], meta={"beside": {"0": work}})
    lines = invoke("status", "latest").stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("beside "))
    assert "process 0" in lines[at]
    assert "process 3" in " ".join(lines[at : at + 3])
    assert max(map(len, lines)) <= 100
