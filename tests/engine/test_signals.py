"""The first Ctrl-C or SIGTERM ends a run tidily, the second at once; both can be resumed."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from execute.faulty import descendants, wait_until_gone

from evotune.engine.folder import list_runs
from evotune.store import RunStore

from .runs import evotune
from .test_quarantine import SPACE

_READY_S = 90.0


def _compiling(command: list[str]) -> tuple[subprocess.Popen[str], set[int]]:
    """A run whose compiler is at work, for many seconds to come; and its children."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + _READY_S
    while True:
        below = descendants(process.pid)
        if any(_is_compiler(pid) for pid in below):
            return process, below
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_compiler(pid: int) -> bool:
    """A real one, not the question for its version."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[0].endswith(b"cc1plus") and any(b"faulty_attention" in word for word in words)


def test_the_first_signal_is_tidy_and_the_second_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    space = tmp_path / "slow.yaml"
    space.write_text(SPACE.replace("exit", "slow_compile").replace("none", "compile_error"))
    runs = ("--runs-dir", tmp_path / "runs")
    process, below = _compiling(evotune("run", space, *runs))
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # it waits for what is in flight
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - sent < 3.0, "a second, on a machine that is not disturbed"
    assert process.returncode == 130
    assert not wait_until_gone(below)
    (run,) = list_runs(tmp_path / "runs")
    assert f"evotune resume {run.id}" in errors

    process, below = _compiling(evotune("resume", run.id, *runs))
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert time.monotonic() - sent < 10.0
    assert process.returncode == 130
    assert not wait_until_gone(below)
    with RunStore.open_for_reading(run.store) as store:
        assert store.meta("state") == "interrupted"
