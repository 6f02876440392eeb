from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from report.runs import make_run, ok

from evotune.api import tuning
from evotune.runs.starting import RunRequest, RunResult
from evotune.trial import Outcome
from tests.patience import PATIENCE_S

from .conftest import ROOT, Invoke, start

RECORDING = ROOT / "tests" / "data" / "synthetic_recording.json.gz"


@pytest.fixture
def slow_space(tmp_path: Path) -> Path:
    """A recorded space whose every trial takes 5 ms: long enough to be interrupted."""
    shutil.copy(RECORDING, tmp_path / "recording.json.gz")
    path = tmp_path / "slow.yaml"
    path.write_text("name: slow\nrecorded: {file: recording.json.gz, delay_ms: 5}\n")
    return path


def run_id(stderr: str) -> str:
    found = re.search(r"^run (\S+)$", stderr, re.M)
    assert found, stderr
    return found.group(1)


def test_run_prints_its_id_its_leaderboard_and_what_to_do_next(
    invoke: Invoke, tmp_path: Path
) -> None:
    result = invoke("run", RECORDING, "--trials", "40", "--seed", "3", "--runs-dir", "my runs")
    assert result.exit_code == 0, result.stderr
    name = run_id(result.stderr)
    assert (tmp_path / "my runs" / name / "store.sqlite").is_file()
    assert "new best: " in result.stderr
    assert f"resume: evotune resume {name} --trials 80 --runs-dir 'my runs'\n" in result.stderr
    page = "--format html -o report.html"
    assert f"report: evotune report {name} {page} --runs-dir 'my runs'" in result.stderr
    assert f"run {name}: finished (trial budget spent)" in result.stdout
    assert " of 40 trials" in " ".join(result.stdout.split())
    assert re.findall(r"^#\d+=? trial", result.stdout, re.M) == [
        f"#{place} trial" for place in range(1, 6)
    ]
    assert result.stdout.count("block_x=") >= 1


def test_a_run_may_confirm_no_champion_and_says_what_confirms_one(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def start_run(request: RunRequest, observer: object) -> RunResult:
        asked.append(request.options["champions"])
        return RunResult(make_run(tmp_path, [ok(2.0)]), "trials", 1)

    monkeypatch.setattr(tuning, "start_run", start_run)
    result = invoke("run", RECORDING, "--champions", "0")
    assert (result.exit_code, asked) == (0, [0])
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("no win: ")]
    assert "--champions 3" in line


@pytest.mark.parametrize(("confirmations", "code"), [({}, 6), ({0: ok(1.9)}, 0)])
def test_a_run_that_could_confirm_none_of_its_champions_is_undecided(
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    confirmations: dict[int, Outcome],
    code: int,
) -> None:
    why = "confirming ended after 90 s"
    run = make_run(tmp_path, [ok(2.0)], confirmations=confirmations, meta={"unconfirmed": why})
    result = RunResult(run, "trials", 1)
    monkeypatch.setattr(tuning, "start_run", lambda request, observer: result)
    assert invoke("run", RECORDING, "-q").exit_code == code


def test_quiet_leaves_only_the_result(invoke: Invoke) -> None:
    result = invoke("run", RECORDING, "--trials", "10", "-q")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "block_x=" in result.stdout


def test_a_finished_run_goes_on_with_more_trials(invoke: Invoke) -> None:
    first = invoke("run", RECORDING, "--trials", "20")
    result = invoke("resume", "latest", "--trials", "30")
    assert result.exit_code == 0, result.stderr
    report = json.loads(invoke("report", run_id(first.stderr), "--format", "json").output)
    assert len(report["trials"]) == 30
    assert report["run"]["kind"] == "recorded"
    assert report["run"]["state"] == "finished:trials"


def test_ctrl_c_ends_with_130_and_the_command_that_resumes(
    slow_space: Path, tmp_path: Path, invoke: Invoke
) -> None:
    process = start("run", slow_space, "--trials", "100000", cwd=tmp_path)
    assert process.stderr is not None
    seen = ""
    while "new best" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE_S)
    name = run_id(seen)
    assert process.returncode == 130
    assert re.search(rf"^resume: .*evotune resume {name}$", errors, re.M), errors
    assert f"run {name}: interrupted (resumable)" in output
    assert "interrupted (resumable)" in invoke("status", "latest").output


def test_a_run_without_a_valid_candidate_ends_with_1(invoke: Invoke, tmp_path: Path) -> None:
    recording = {
        "device_name": "none",
        "kernel_name": "hopeless",
        "tune_params_keys": ["a"],
        "tune_params": {"a": [1, 2]},
        "cache": {str(a): {"a": a, "time": "CompilationFailedConfig"} for a in (1, 2)},
    }
    (tmp_path / "hopeless.json").write_text(json.dumps(recording))
    result = invoke("run", "hopeless.json", "--trials", "5")
    assert result.exit_code == 1, result.stderr
    assert "no valid candidate" in result.stdout
    assert "2 ended in compile_error" in result.stdout
    assert "resume:" not in result.stderr  # every configuration was tried


@pytest.mark.soak
def test_a_run_without_a_valid_candidate_asks_for_a_new_run(invoke: Invoke, tmp_path: Path) -> None:
    invoke("init", "mine")
    (tmp_path / "mine" / "mine.cpp").write_text("no code")
    result = invoke("run", "mine/space.yaml", "--trials", "1")
    assert result.exit_code == 1, result.stderr
    assert "confirming" not in result.stderr
    assert "resume:" not in result.stderr
    assert "next: correct the file and start a new run" in result.stderr


def test_the_last_line_of_progress_and_all_reports_agree_on_the_time(
    slow_space: Path, invoke: Invoke
) -> None:
    for words in (("run", slow_space, "--trials", 20), ("resume", "latest", "--trials", 40)):
        said = invoke(*words).stderr
        (ended,) = re.findall(r"^ended: trial budget spent \((.*)\)$", said, re.M)
        assert re.search(rf"^elapsed +{ended}$", invoke("status", "latest").stdout, re.M)
        assert f"| elapsed | {ended} |" in invoke("report", "latest").stdout
        assert f'["elapsed","{ended}"]' in invoke("report", "latest", "--format", "html").stdout
        seconds = json.loads(invoke("status", "latest", "--format", "json").stdout)["elapsed_s"]
        report = json.loads(invoke("report", "latest", "--format", "json").stdout)
        assert report["run"]["elapsed_s"] == seconds
        searched_s = max(trial["finished_s"] for trial in report["trials"])
        assert seconds > searched_s > 0.005 * len(report["trials"])
