"""Messages to children that do not read yet, and waiting for many children."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from evotune.backends.base.launch import CompileFailure, CompileJob, DeviceProfile
from evotune.problems.problem import Case
from evotune.trial import Outcome, OutcomeKind
from evotune.workers import child as child_module
from evotune.workers.child import Child
from evotune.workers.compile_pool import CompilePool
from evotune.workers.device_slot import DeviceSlot, ProblemSource
from evotune.workers.local import LocalExecutor
from evotune.workers.messages import PROBLEM_WORKER, ProblemToLoad, TrialRequest, TryProblem
from tests.patience import PATIENCE_S, passing_time

LARGE = "x" * 500_000  # a pipe holds 64 KiB
READS_WHEN_TOLD = """
import os, struct, sys, time
import msgspec
from evotune.util.channel import framed
from evotune.workers.messages import Tried
while not os.path.exists("TOLD"):
    time.sleep(0.01)
(length,) = struct.unpack(">I", sys.stdin.buffer.read(4))
body = sys.stdin.buffer.read(length)
sys.stdout.buffer.write(framed(Tried(msgspec.msgpack.decode(body)["problem"]["name"])))
sys.stdout.buffer.flush()
sys.stdin.buffer.read()
"""
OPENS_AND_NEVER_READS_AGAIN = """
import os, struct, sys, time
import msgspec
from evotune.util.channel import framed
from evotune.workers.messages import Hello, Opened
def hear():
    (length,) = struct.unpack(">I", os.read(0, 4))
    return os.read(0, length)
hear()  # Preload
token = msgspec.msgpack.decode(hear(), type=Hello).token
os.write(1, framed(Opened(token=token)))
time.sleep(60)
"""
Program = Callable[[str], None]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """`program(text)`: each child executes this text."""

    def make(text: str) -> None:
        command = [sys.executable, "-c", text]
        monkeypatch.setattr(child_module, "module_command", lambda *_: command)

    return make


def at_once(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for the child"


def test_a_large_message_waits_for_its_reader_and_arrives_whole(
    tmp_path: Path, program: Program
) -> None:
    told = tmp_path / "told"
    program(READS_WHEN_TOLD.replace("TOLD", str(told)))
    child = Child(PROBLEM_WORKER, tmp_path / "log", {})
    try:
        case = Case("case", {})
        message = TryProblem(ProblemToLoad(LARGE, "float32", ""), case, case, timed=False)
        at_once(lambda: child.send(message))
        told.touch()
        assert child_module.wait_readable([child], PATIENCE_S) == [child]
        answers: list[Any] = []
        while not answers:
            answers += child.receive() or []
        assert answers[0].mistake == LARGE
    finally:
        child.kill()


def test_a_worker_that_never_reads_its_request_is_killed_when_its_time_is_over(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(OPENS_AND_NEVER_READS_AGAIN)
    problem = ProblemSource("attention", "float32", Path())
    profile = DeviceProfile("cpu", "cpu", "", {"threads": 1})
    slot = DeviceSlot(tmp_path, profile, problem, deterministic=True)
    try:
        slot.open()
        while slot.child is not None:
            slot.handle()
            time.sleep(0.01)
        at_once(lambda: slot.start(TrialRequest(number=0, cases=(), baselines={"case": LARGE})))
        assert slot.expire() is None
        let_pass, outcome = passing_time(monkeypatch), None
        while outcome is None:
            let_pass(1.0)
            outcome = slot.expire()
        assert isinstance(outcome, Outcome)
        assert outcome.kind is OutcomeKind.TIMEOUT
    finally:
        slot.close()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """New file descriptors are numbered from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("needs 2048 file descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < 1024:
        held.append(os.dup(held[0]))
    yield
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_large_numbers_of_file_descriptors_are_waited_for(tmp_path: Path) -> None:
    pool = CompilePool(tmp_path, tmp_path / "cache", processes=1, timeout_s=PATIENCE_S)
    executor = LocalExecutor(pool, cast(Sequence[DeviceSlot], ()), exclusive=True)
    try:
        (tmp_path / "k.cpp").write_text("this is no C++\n")
        pool.submit(CompileJob("cpp", str(tmp_path), "k.cpp", (), (), "", ""))
        while not (results := pool.wait(5.0)):
            pass
        assert isinstance(results[0][1], CompileFailure)
        executor.wake()
        assert executor.poll(5.0) == []
    finally:
        executor.close()


def test_a_machine_of_very_many_cores_has_descriptors_for_all_its_compile_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has two, and 1024 is a usual limit."""
    pool = CompilePool(tmp_path, tmp_path / "cache", processes=768)
    monkeypatch.setattr(CompilePool, "_spawn", lambda _: object())
    pool.warm("cpp")
    assert len(pool._idle) == 256
    pool._idle.clear()
    pool.close()
