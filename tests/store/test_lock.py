"""One process at a time works on a run, and a dead one never keeps it locked."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evotune.errors import EnvironmentProblem, RunLocked
from evotune.runs import folder
from evotune.runs.folder import RunFolder
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
_HOLD = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from evotune.runs import folder
from evotune.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path), str(ROOT)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_does_not_wait_and_is_told_who_has_the_run(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(RunLocked, match=f"being worked on by process {holder.pid}$"), run.locked():
        pass
    assert run.holder() == holder.pid


def test_a_killed_process_holds_nothing(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    run = RunFolder(tmp_path)
    holder.kill()
    holder.wait()
    assert run.holder() is None
    with run.locked():
        assert run.holder() is not None
    assert run.holder() is None


def test_a_child_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with run.locked():
        child = subprocess.Popen(["sleep", "60"])
    try:
        with run.locked():
            pass
    finally:
        child.kill()
        child.wait()


def test_a_process_that_only_looks_is_no_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_LOOKING_S", PATIENCE_S)  # the thread may be slow to let go
    run = RunFolder(tmp_path)
    with run.locked():
        pass
    looking = threading.Event()

    def look() -> None:
        """As `holder` does, but for longer."""
        with (tmp_path / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            looking.set()
            time.sleep(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    looking.wait()
    assert run.holder() is None
    with run.locked():
        pass
    thread.join()


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    run = RunFolder(tmp_path)
    with run.locked():
        pass
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(EnvironmentProblem, match=r"cannot be locked \(No locks available\)"):
        run.locked().__enter__()
    assert run.holder() is None
