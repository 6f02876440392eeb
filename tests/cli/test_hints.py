"""Every command line that evotune shows works when a user pastes it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from report.runs import make_run, ok, text_of

from evotune.cli.run_commands import more_devices
from evotune.report.data import RunData
from evotune.report.html import run_payload
from evotune.runs.folder import find_run
from evotune.util.commands import command_line, install_command, python_command, run_command
from tests.patience import PATIENCE_S

from .conftest import ROOT, Invoke, start

RECORDING = ROOT / "tests" / "data" / "synthetic_recording.json.gz"


def paste(invoke: Invoke, line: str) -> str:
    """Runs a line of `evotune …` in this process and returns its output."""
    program, *words = shlex.split(line)
    assert program == "evotune"
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    return result.output


def hint(text: str, label: str) -> str:
    (found,) = re.findall(rf"^{label}: (.*)$", text, re.M)
    return str(found)


@pytest.mark.parametrize("runs_dir", [None, 'my $runs\' "here"', "elsewhere"])
def test_what_a_run_says_comes_next_can_be_pasted(
    invoke: Invoke, tmp_path: Path, runs_dir: str | None
) -> None:
    if runs_dir == "elsewhere":
        runs_dir = str(tmp_path / "other folder" / "runs")
    where = () if runs_dir is None else ("--runs-dir", runs_dir)
    said = invoke("run", RECORDING, "--trials", "20", *where).stderr
    paste(invoke, hint(said, "report"))
    assert (tmp_path / "report.html").is_file()
    again = paste(invoke, hint(said, "resume"))
    assert "of 40 trials" in again
    assert len(list((tmp_path / (runs_dir or "runs")).iterdir())) == 1


def test_a_run_named_by_its_path_is_found_again(invoke: Invoke, tmp_path: Path) -> None:
    invoke("run", RECORDING, "--trials", "20", "--runs-dir", "a b")
    (run,) = (tmp_path / "a b").iterdir()
    shown = invoke("top", run, "-n", "2").stdout
    more = hint(shown, "\\d+ more rows")
    assert more.endswith("--runs-dir 'a b'")
    assert "more row" not in paste(invoke, more)


def test_a_long_path_does_not_break_a_command_in_two(invoke: Invoke, tmp_path: Path) -> None:
    runs = tmp_path / ("a long name " * 12)
    invoke("run", RECORDING, "--trials", "20", "--runs-dir", runs)
    paste(
        invoke,
        hint(invoke("top", "latest", "-n", "2", "--runs-dir", runs).stdout, r"\d+ more rows"),
    )


def test_commands_in_reports_can_be_pasted(invoke: Invoke, tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "my runs",
        [ok(1.0 + n / 100) for n in range(22)],
        meta={"command": ["evotune", "run", "my space.yaml"]},
    )
    data = RunData.load(run)
    page = text_of("md", data)
    (line,) = re.findall(r"^.*2 more rows: `(.*)`\.$", page, re.M)
    assert "speedup" in paste(invoke, line)
    assert "evotune run 'my space.yaml'" in page
    payload = run_payload(data)
    assert payload["csv_command"] == line
    assert payload["ablate_command"] == f"evotune ablate {run.id} --runs-dir 'my runs'"


def test_a_budget_that_resume_cannot_raise_is_no_hint(invoke: Invoke) -> None:
    said = invoke("run", RECORDING, "--trials", "500", "--no-improvement", "5").stderr
    assert "ended: no improvement for too long" in said
    assert "resume:" not in said


def test_devices_that_were_asked_for_are_kept() -> None:
    assert more_devices("all", None, True) == ["--gpus", "all", "--allow-mixed"]
    assert more_devices(None, "tcp://host:1", False) == ["--cluster", "tcp://host:1"]
    assert more_devices(None, None, False) == []


def test_the_way_to_compile_without_a_gpu_names_the_space(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evotune.backends.cuda.discovery.gpus_present", list)
    invoke("init", "my-kernel", "--language", "cuda")
    (tmp_path / "my-kernel").rename(tmp_path / "my kernel")
    for space, asked, expected in (
        ("my kernel/space.yaml", "auto", "'my kernel/space.yaml' --device l4"),
        ("my kernel/space.yaml", "a100", "'my kernel/space.yaml' --device a100"),
        ("attention-wgmma", "auto", "attention-wgmma --device h100"),
    ):
        result = invoke("run", space, "--device", asked)
        assert result.exit_code == 3
        assert result.stderr.endswith(f"; or only compile: evotune compile {expected}\n")
    named = invoke("run", "attention-wgmma", "--device", "l4")  # it has no kernel for an L4
    assert (named.exit_code, "compile" in named.stderr) == (3, False)


@pytest.mark.parametrize(
    ("called", "on_path", "program"),
    [
        ("{bin}/evotune", True, "evotune"),
        ("{bin}/evotune", False, "'{bin}/evotune'"),
        ("{package}/__main__.py", False, f"{shlex.quote(sys.executable)} -m evotune"),
        ("/usr/bin/pytest", False, "evotune"),
    ],
)
def test_the_program_is_named_as_the_shell_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, called: str, on_path: bool, program: str
) -> None:
    names = {"bin": tmp_path / "my venv" / "bin", "package": ROOT / "evotune"}
    names["bin"].mkdir(parents=True)
    script = names["bin"] / "evotune"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [called.format(**names)])
    monkeypatch.setenv("PATH", str(names["bin"]) if on_path else str(tmp_path))
    assert command_line("top", "a b") == f"{program.format(**names)} top 'a b'"
    here = program == "evotune"  # else the shell's pip and python are of another environment
    python = "python" if here else shlex.quote(sys.executable)
    assert python_command("-c", "a b") == f"{python} -c 'a b'"
    pip = "pip" if here else f"{python} -m pip"
    assert install_command("a b") == f"{pip} install --no-deps './a b'"


def test_a_shell_runs_the_hint_of_an_evotune_that_is_not_on_its_path(tmp_path: Path) -> None:
    process = start("run", RECORDING, "--trials", "5", "-v", cwd=tmp_path)
    _, errors = process.communicate(timeout=PATIENCE_S)
    command = hint(errors, "report").replace("report.html", "-").replace("html", "json")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=True
    )
    assert len(json.loads(done.stdout)["trials"]) == 5


def test_a_run_is_found_by_what_its_command_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs", [ok(1.0)])
    for folder in (tmp_path, tmp_path / "runs", run.path):
        monkeypatch.chdir(folder)
        _, _, name, *rest = shlex.split(run_command("top", run.path))
        runs_dir = Path(rest[1]) if rest else Path("runs")
        assert find_run(name, runs_dir).path.resolve() == run.path
