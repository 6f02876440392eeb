"""Child processes die with their parent, whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.patience import PATIENCE_S

from .faulty import descendants, stat_fields, wait_until_gone

_PATH = os.pathsep.join(str(Path(__file__).parents[up]) for up in (1, 2))
_PARENT = """
import sys, time
from pathlib import Path
from workers.faulty import FaultyKernels
kernels = FaultyKernels(Path(sys.argv[1]))
kernels.executor.submit(kernels.proposal(sys.argv[2]))
while True:
    kernels.executor.poll(0.5)
"""


def _kill_parent_when(
    folder: Path, fault: str, ready: Callable[[set[int]], bool], **environment: str
) -> set[int]:
    """Starts an executor in a process of its own and kills that process alone. Returns those of
    its children that are left."""
    log = folder / "parent.log"
    with log.open("wb") as output:
        parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, str(folder), fault],
            env={**os.environ, "PYTHONPATH": _PATH, **environment},
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        below: set[int] = set()
        while not (below and ready(below)):
            assert parent.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "never got ready"
            time.sleep(0.05)
            below = descendants(parent.pid)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    return wait_until_gone(below)


def _commands(pids: set[int]) -> str:
    words = []
    for pid in pids:
        try:
            words.append(Path(f"/proc/{pid}/cmdline").read_text())
        except OSError:
            continue
    return " ".join(words)


def test_a_compile_process_and_its_running_compiler_die_with_the_parent(tmp_path: Path) -> None:
    left = _kill_parent_when(tmp_path, "slow_compile", lambda pids: "cc1plus" in _commands(pids))
    assert not left, _commands(left)


def test_a_device_worker_inside_a_kernel_dies_with_the_parent(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "device.log"

    def in_kernel(pids: set[int]) -> bool:
        return log.exists() and "the kernel is in its loop" in log.read_text()

    left = _kill_parent_when(tmp_path, "infinite_loop", in_kernel)
    assert not left, _commands(left)


def test_a_child_whose_parent_died_before_it_started_ends_at_once() -> None:
    gone = subprocess.run(["true"], check=True)
    assert gone.returncode == 0
    for role in ("compile_worker", "device_worker"):
        child = subprocess.Popen(
            [sys.executable, "-m", f"evotune.workers.{role}", "1"],  # process 1 is not its parent
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert child.wait(PATIENCE_S) == 0
            assert not stat_fields(child.pid)
        finally:
            child.kill()
            child.communicate()
