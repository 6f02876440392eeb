"""The commands on the family `attention`: cases sent to spaces, a tiny real run, and mistakes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from evotune.api.family_run import open_family
from evotune.runs.folder import list_families
from tests.conftest import KeepResult
from tests.patience import PATIENCE_S
from tests.runs.runs import brief_confirmations, start_killable

from .conftest import Invoke

TINY = {"batch": 1, "heads": 2, "seq_len": 64, "head_dim": 32}
CASES = [
    {**TINY, "count": 3},
    {**TINY, "seq_len": 48},
    {**TINY, "dtype": "float16"},
]


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(CASES))
    return path


def test_check_tells_which_case_goes_where(invoke: Invoke, cases: Path) -> None:
    done = invoke("check", "attention", "--cases", cases, "--device", "cpu", "--no-compile")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert sum("attention-cpu, attention-scalar-cpu" in line for line in lines) == 2
    assert "(1,2,64,32) full float16" in done.stdout
    assert "found dtype = float16; attention-" in done.stdout
    searched = [line.split() for line in lines if "and 1 more" in line]
    assert [row[-2] for row in searched] == ["attention-cpu", "attention-scalar-cpu"]
    assert all(int(row[-1].replace(",", "")) > 0 for row in searched)
    done = invoke("check", "attention-cpu", "--cases", cases, "--device", "cpu", "--no-compile")
    assert done.exit_code == 0, done.output
    assert "2: (1,2,64,32) full, (1,2,48,32) full" in done.stdout
    assert "1 of 3 cases is skipped: 1 for dtype float16" in done.stderr


@pytest.mark.soak
def test_compile_needs_no_gpu(invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    (tmp_path / "cases.json").write_text(json.dumps([{**TINY, "dtype": "bfloat16"}]))
    words = ("--cases", "cases.json", "--device", "h200", "--sample", 1, "--format", "json")
    done = invoke("compile", "attention", *words)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert {row["space"] for row in rows} == {
        *("attention-wgmma", "attention-tma", "attention-mma", "attention-wmma"),
        "attention-scalar",
    }
    assert {row["outcome"] for row in rows} == {"ok"}


def test_a_familys_run_is_one_folder(invoke: Invoke, cases: Path, tmp_path: Path) -> None:
    words = ("--cases", cases, "--device", "cpu", "--trials", 9, "--champions", 1)
    with brief_confirmations():
        done = invoke("run", "attention", *words)
    assert done.exit_code == 0, done.output
    assert "(1,2,64,32) full float16: goes nowhere: " in done.stderr
    assert "after the race, lower bounds: attention-" in done.stderr
    family = open_family("latest", tmp_path / "runs")
    assert family is not None
    assert family.state == "finished"
    assert sum(len(run.trials) for run in family.runs) == 9
    (winner,) = family.winners.values()
    assert winner.best.confirmed

    assert family.id in invoke("status").stdout
    told = json.loads(invoke("status", "latest", "--format", "json").stdout)
    assert (told["state"], told["trials"]) == ("finished", 9)
    assert told["groups"][0]["winner"] in told["groups"][0]["spaces"]
    assert [each["case"] for each in told["unserved"]] == ["(1,2,64,32) full float16"]
    assert "winner" in invoke("status", family.id).stdout
    assert winner.id in invoke("top", "latest").stdout
    assert json.loads(invoke("top", "latest", "--format", "json").stdout)
    assert winner.id in invoke("report", "latest").stdout
    done = invoke("report", "latest", "--format", "html", "-o", "page.html")
    assert done.exit_code == 0, done.output
    assert all(run.id in (tmp_path / "page.html").read_text() for run in family.runs)

    done = invoke("resume", "latest")
    assert done.exit_code == 0, done.output
    assert "--trials or --minutes asks for more" in done.stderr
    done = invoke("export", "latest", "-o", "package")
    if done.exit_code:  # on a busy machine perhaps nothing wins
        assert done.exit_code == 1
        assert "no confirmed champion is surely faster" in done.stderr
    else:
        assert (tmp_path / "package" / "attention" / "dispatch.json").is_file()
    done = invoke("rm", "latest", "--yes")
    assert (done.exit_code, list((tmp_path / "runs").iterdir())) == (0, []), done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run attention", "error: the family attention needs cases: --cases FILE"),
        ("check attention", "error: the family attention needs cases: --cases FILE"),
        ("compile attention", "error: the family attention needs cases: --cases FILE"),
        ("run attention --cases CASES --gpus 2", "takes no --gpus: leave it out, or name a space"),
        ("run attention --cases CASES --warm-start x", "takes no --warm-start: leave it out"),
        ("run attention --cases CASES --device l5", "unknown device 'l5'"),
        ("run attention --cases none.json", "error: none.json: cannot read it"),
        ("run attention --cases HALF --device cpu", "no shipped space can compute any of 1 case"),
    ],
)
def test_a_mistake_is_said_and_leaves_nothing(
    invoke: Invoke, cases: Path, tmp_path: Path, arguments: str, words: str
) -> None:
    half = tmp_path / "half.json"
    half.write_text(json.dumps(CASES[2:]))
    given = arguments.replace("CASES", str(cases)).replace("HALF", str(half))
    done = invoke(*given.split())
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_family_is_no_space(invoke: Invoke) -> None:
    done = invoke("portfolio", "attention-nothing", "--cases", "x", "-o", "y")
    assert done.exit_code == 2
    done = invoke("replay", "attention")
    assert done.exit_code == 2


@pytest.mark.soak
def test_a_family_survives_being_killed(
    cases: Path, tmp_path: Path, keep_result: KeepResult
) -> None:
    runs_dir = tmp_path / "runs"
    words = ["--runs-dir", str(runs_dir)]
    process = start_killable(
        *("run", "attention", "--cases", cases, "--device", "cpu", "--trials", "12"), *words
    )
    kills, began_s = 0, time.monotonic()
    while process.poll() is None:
        deadline = time.monotonic() + 10 * (kills + 1)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            assert time.monotonic() < began_s + 10 * PATIENCE_S
            (folder,) = list_families(runs_dir)
            process = start_killable("resume", folder.id, *words)
    assert process.returncode == 0
    family = open_family("latest", runs_dir)
    assert family is not None
    assert family.state == "finished"
    assert sum(len(run.trials) for run in family.runs) == 12
    keep_result(kills=kills)
