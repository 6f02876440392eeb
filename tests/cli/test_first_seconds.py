"""Ctrl-C at any moment of a command: exit code 130, at most one more line, no half-made folder."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from report.runs import make_run, ok
from workers.faulty import space_text

from evotune.runs import starting
from evotune.runs.folder import list_runs
from tests.patience import PATIENCE_S

from .conftest import ROOT, Invoke, start

RECORDING = ROOT / "tests" / "data" / "synthetic_recording.json.gz"
INTERRUPTED = 130
_SOAK = pytest.mark.soak


def _arguments(command: str) -> tuple[str, ...]:
    return {
        "check": ("check", "space.yaml"),
        "run": ("run", "space.yaml", "--trials", "60", "--runs-dir", "made"),
        "report": ("report", "latest", "--format", "html", "-o", "page.html"),
    }[command]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(RECORDING, tmp_path / "recording.json.gz")
    (tmp_path / "space.yaml").write_text("name: tiny\nrecorded: {file: recording.json.gz}\n")
    make_run(tmp_path / "runs", [ok(1.0 + n / 100) for n in range(40)])
    return tmp_path


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        ("check", 4),
        ("run", 4),
        *(pytest.param(command, 8, marks=_SOAK) for command in ("check", "run", "report")),
    ],
)
def test_an_interrupted_command_ends_with_130_and_no_traceback(
    folder: Path, command: str, steps: int
) -> None:
    started_s = time.monotonic()
    whole = start(*_arguments(command), cwd=folder)
    _, errors = whole.communicate(timeout=PATIENCE_S)
    assert whole.returncode == 0, errors
    whole_s = time.monotonic() - started_s
    shutil.rmtree(folder / "made", ignore_errors=True)
    codes: list[int] = []
    # Of a busy machine's signals all may come before Python or after the end: then more are sent.
    while len(codes) < steps or (INTERRUPTED not in codes and len(codes) < 10 * steps):
        step = len(codes) % steps
        process = start(*_arguments(command), cwd=folder)
        time.sleep(whole_s * (step / steps) ** 2)  # most signals arrive during imports
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        codes.append(process.returncode)
        if process.returncode == -signal.SIGINT or "Traceback" in errors:
            # Python itself was starting: no code of evotune has run. Its own error may name the
            # package's folder.
            assert f'File "{ROOT / "evotune"}' not in errors
            assert process.returncode in (-signal.SIGINT, 1)
            continue
        assert process.returncode in (0, INTERRUPTED), errors
        assert errors.count("interrupted\n") <= 1
    assert INTERRUPTED in codes
    if command == "run":
        _can_all_be_resumed(folder)


def test_an_interrupt_before_any_import_of_evotune() -> None:
    """The signal arrives while the command opens the null device for closed streams."""
    begun = """
import os, runpy, signal
opened = os.open
def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return opened(*arguments)
os.open = interrupted
runpy.run_module("evotune", run_name="__main__", alter_sys=True)
"""
    process = subprocess.run(
        [sys.executable, "-c", begun], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stderr) == (INTERRUPTED, "interrupted\n")


def _can_all_be_resumed(folder: Path) -> None:
    made = sorted((folder / "made").iterdir()) if (folder / "made").exists() else []
    assert [run.path for run in list_runs(folder / "made")] == made, "no half folder"
    for run in made:
        process = start("resume", run, cwd=folder)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_run_that_cannot_begin_leaves_no_folder(
    invoke: Invoke, folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*arguments: object) -> str:
        raise error

    monkeypatch.setattr(starting, "snapshot", fail)
    result = invoke("run", folder / "space.yaml", "--runs-dir", "made")
    assert result.exit_code == (INTERRUPTED if isinstance(error, KeyboardInterrupt) else 3)
    assert list(Path("made").iterdir()) == []


# --- `compile` and its temporary folder ----------------------------------------------------------

_COMPILER = """#!/bin/bash
case "$*" in *faulty_attention*) [ -e {slow} ] && exec sleep 4321 ;; esac
exec g++ "$@"
"""


@pytest.fixture
def compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts `evotune compile` and waits until its compiler is at work. The compiler is slow while
    the file `slow` exists."""
    compiler = tmp_path / "compiler"
    compiler.write_text(_COMPILER.format(slow=tmp_path / "slow"))
    compiler.chmod(0o755)
    (tmp_path / "slow").touch()
    (tmp_path / "temporary").mkdir()
    more = "parameters:\n  FAULT: {choices: [none]}\ntimeouts: {compile_s: 3600}\n"
    (tmp_path / "space.yaml").write_text(space_text("slow", more))
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    processes = []

    def begin() -> subprocess.Popen[str]:
        process = start("compile", "space.yaml", "--device", "cpu", cwd=tmp_path)
        processes.append(process)
        while not list(tmp_path.glob("temporary/evotune-*/scratch/*")) and process.poll() is None:
            time.sleep(0.02)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGINT,
        *(pytest.param(each, marks=_SOAK) for each in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_signal_ends_compile_and_its_folder(
    compiling: Callable[[], subprocess.Popen[str]], tmp_path: Path, how: signal.Signals
) -> None:
    process = compiling()
    process.send_signal(how)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (INTERRUPTED, "interrupted\n")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.soak
def test_the_folder_of_a_killed_compile_goes_with_the_next_one(
    compiling: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = compiling()
    process.kill()
    process.communicate()
    assert list((tmp_path / "temporary").iterdir())
    (tmp_path / "slow").unlink()
    after = start("compile", "space.yaml", "--device", "cpu", cwd=tmp_path)
    _, errors = after.communicate(timeout=PATIENCE_S)
    assert after.returncode == 0, errors
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_signal_that_the_shell_ignores_stays_ignored(folder: Path) -> None:
    """A shell lets the commands that a script starts with `&` ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # children inherit it
    try:
        process = start("check", "space.yaml", cwd=folder)
    finally:
        signal.signal(signal.SIGINT, before)
    while process.poll() is None:
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
