"""The first Ctrl-C or SIGTERM ends a run tidily, the second at once; both can be resumed. Signals
that somebody else handles, or that are ignored, are left alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from workers.faulty import descendants, space_text, wait_until_gone

from evotune.runs.folder import RunFolder, list_runs
from evotune.store import RunStore
from evotune.util.processes import StopSignal, interruptible
from tests.patience import PATIENCE_S, passing_time

from .runs import evotune, recorded_space, run_here, start_killable, stored

_COMPILER = """#!/bin/bash
case "$*" in *faulty_attention*) exec sleep 4321 ;; esac
exec g++ "$@"
"""
_SPACE = space_text(
    "slow", "parameters:\n  FAULT: {choices: [none]}\ntimeouts: {compile_s: 3600}\n"
)


def _compiling(command: list[str]) -> tuple[subprocess.Popen[str], set[int]]:
    """A run whose compiler will be at work for more than an hour, and the run's child processes."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        below = descendants(process.pid)
        if any(_is_compiler(pid) for pid in below):
            return process, below
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_compiler(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x004321\x00"
    except OSError:
        return False


def _second_signal(tmp_path: Path) -> tuple[RunFolder, float]:
    """A run that a second signal ended, and the seconds from that signal to its end."""
    space = tmp_path / "slow.yaml"
    space.write_text(_SPACE)
    process, below = _compiling(evotune("run", space, "--runs-dir", tmp_path / "runs"))
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # it waits for the trials in flight
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    second_s = time.monotonic() - sent
    assert process.returncode == 130
    assert not wait_until_gone(below, PATIENCE_S)
    (run,) = list_runs(tmp_path / "runs")
    assert f"evotune resume {run.id}" in errors
    return run, second_s


def _interrupted_twice(tmp_path: Path) -> tuple[float, float]:
    """Seconds from a first signal to the end, and from a second one to the end."""
    run, second_s = _second_signal(tmp_path)
    process, below = _compiling(evotune("resume", run.path))
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    first_s = time.monotonic() - sent
    assert process.returncode == 130
    assert not wait_until_gone(below, PATIENCE_S)
    with RunStore.open_for_reading(run.store) as store:
        assert store.meta("state") == "interrupted"
    return first_s, second_s


@pytest.fixture
def slow_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    compiler = tmp_path / "compiler"
    compiler.write_text(_COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))


@pytest.mark.usefixtures("slow_compiler")
def test_the_first_signal_waits_for_trials_and_the_second_ends_at_once(tmp_path: Path) -> None:
    _second_signal(tmp_path)


@pytest.mark.soak
@pytest.mark.usefixtures("slow_compiler")
def test_the_first_signal_is_tidy_the_second_ends_at_once_and_no_compiler_is_waited_for(
    tmp_path: Path,
) -> None:
    _interrupted_twice(tmp_path)


@pytest.mark.soak
@pytest.mark.usefixtures("slow_compiler")
def test_how_soon_signals_end_a_run(tmp_path: Path, keep_result: Callable[..., None]) -> None:
    times = []
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        times.append(_interrupted_twice(folder))
    first_s, second_s = (max(column) for column in zip(*times, strict=True))
    keep_result(
        signals=len(times),
        first_to_end_s_longest=round(first_s, 2),
        second_to_end_s_longest=round(second_s, 2),
    )


@pytest.fixture(params=["run", "other work"])
def handling(request: pytest.FixtureRequest) -> contextlib.AbstractContextManager[object]:
    if request.param != "run":
        return interruptible()
    stop = StopSignal()
    stop.tidy = True
    return stop


def test_a_signal_that_is_ignored_stays_ignored(
    handling: contextlib.AbstractContextManager[object],
) -> None:
    """A shell lets the commands that a script starts with `&` ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with handling as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert not getattr(stop, "requested", False)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_time_limit_asks_a_run_to_end_as_a_signal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    let_pass = passing_time(monkeypatch)
    stop, endless = StopSignal(time.monotonic() + 1000), StopSignal()
    assert (stop.requested, stop.is_near) == (False, False)
    let_pass(760)
    assert (stop.requested, stop.is_near) == (False, True)
    let_pass(250)
    assert (stop.requested, stop.is_near) == (True, True)
    assert (endless.requested, endless.is_near) == (False, False)


def test_a_signal_that_another_language_handles_is_left_to_it(
    handling: contextlib.AbstractContextManager[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python could not give it back."""
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(signal, "getsignal", lambda number: None)
        handling.__enter__()
    now = signal.getsignal(signal.SIGINT)
    handling.__exit__(None, None, None)
    assert now is before


def test_a_closed_terminal_interrupts_a_resumed_run_too(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space", delay_ms=10.0)
    run = run_here(space, tmp_path / "runs", trials=20)
    process = start_killable("resume", run.path, "--trials", "2000")
    while stored(run) < 25:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE_S) == 130
    with RunStore.open_for_reading(run.store) as store:
        assert store.meta("state") == "interrupted"
