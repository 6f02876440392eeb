"""Other processes at work on the machine are named."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evotune.backends.cpu import cpu_profile
from evotune.backends.registry import others_at_work, sharing


@pytest.fixture
def spinning() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(0.2)
    yield
    process.kill()
    process.wait()


def test_cores_that_others_keep_busy_are_counted(spinning: None) -> None:
    words = " ".join(others_at_work([cpu_profile.profile()]))
    assert f"of {os.cpu_count()} cores busy" in words
    assert "other processes keep" in words


def test_a_worker_of_another_run_is_named() -> None:
    pretend = "import sys; sys.stdin.read()"
    arguments = ["evotune.workers.device_worker", "4321"]
    worker = subprocess.Popen([sys.executable, "-c", pretend, *arguments], stdin=subprocess.PIPE)
    try:
        while b"device_worker" not in Path(f"/proc/{worker.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        said = others_at_work([cpu_profile.profile()])
        runs = [line for line in said if "measuring (process" in line]  # perhaps tests' beside it
        assert len(runs) == 1
        assert "4321" in runs[0]
    finally:
        worker.communicate()


def test_an_own_worker_is_none_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evotune.backends.registry._busy_cores", lambda: iter(()))
    assert not [words for words in others_at_work([]) if str(os.getpid()) in words]


def test_other_runs_are_named_in_one_line_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evotune.backends.registry._busy_cores", lambda: iter(()))
    monkeypatch.setattr("evotune.backends.registry._measuring_parents", lambda: {9, 7})
    monkeypatch.setattr("evotune.backends.registry.core_of", str)  # each logical CPU has a core
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(6)))
    profile = cpu_profile.profile()
    (line,) = others_at_work([])
    assert line == "2 other evotune runs are measuring (processes 7, 9)"
    assert sharing(profile) == "start each run with OMP_NUM_THREADS=2 or --device cpu:2"
    monkeypatch.setattr("evotune.backends.registry._measuring_parents", set)
    assert sharing(profile) == ""
