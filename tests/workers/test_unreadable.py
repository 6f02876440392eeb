"""A message of the wrong shape is a named failure of the worker, whichever side sent it."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from evotune.backends.base.launch import CompileFailure, DeviceProfile
from evotune.backends.cuda import perturbed_build
from evotune.errors import EnvironmentProblem
from evotune.runs import cluster_run
from evotune.trial import QUARANTINED, Outcome, OutcomeKind
from evotune.util.channel import UnreadableMessage, Wire
from evotune.workers import child as child_module
from evotune.workers import device_slot, problem_check
from evotune.workers.child import Child
from evotune.workers.cluster_executor import ask_each
from evotune.workers.compile_pool import CompilePool
from evotune.workers.device_slot import DeviceSlot, ProblemSource
from evotune.workers.entry import CANNOT_READ
from evotune.workers.messages import (
    COMPILE_WORKER,
    DEVICE_WORKER,
    PROBLEM_WORKER,
    DescribeDevice,
    Opened,
    Prepared,
    Started,
    TrialRequest,
)
from tests.patience import PATIENCE_S

from .faulty import compile_job

PROFILE = DeviceProfile("cpu", "cpu", "", {"threads": 1})
WRONG = {
    "unknown tag": ({"type": "Nonsense", "token": ""}, "Invalid value 'Nonsense'"),
    "missing tag": ({"token": ""}, "missing required field `type`"),
    "wrong type": ({"type": "TrialDone", "token": 1, "outcome": {}}, "Expected `str`, got `int`"),
    "missing field": ({"type": "TrialDone", "token": ""}, "missing required field `outcome`"),
    "impossible": ({"type": "TrialDone", "outcome": {"kind": "ok"}}, "ok with fitness None"),
    "no object": ([1], "Expected `object`, got `array`"),
    "no MessagePack": (b"\xc1\xc1", "malformed"),
    "truncated": (msgspec.msgpack.encode({"type": "TrialDone"})[:-3], "truncated"),
}


def body(message: Any) -> bytes:
    return message if isinstance(message, bytes) else msgspec.msgpack.encode(message)


CHILD = """
import base64, os, struct, sys
def say(body):
    os.write(1, struct.pack(">I", len(body)) + body)
def hear():
    (length,) = struct.unpack(">I", sys.stdin.buffer.read(4))
    return sys.stdin.buffer.read(length)
{more}
say(base64.b64decode({body!r}))
hear()
"""
ANSWERS_HELLO = """
import msgspec
from evotune.workers.messages import Hello, Opened
from evotune.util.channel import encode
hear()  # Preload
say(encode(Opened(token=msgspec.msgpack.decode(hear(), type=Hello).token)))
"""
Liar = Callable[..., None]


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Liar:
    """`lying(message)`: every child process reads its first message, then sends `message`."""

    def make(message: Any, more: str = "hear()") -> None:
        encoded = base64.b64encode(body(message))
        program = CHILD.format(more=more, body=encoded)
        monkeypatch.setattr(
            child_module, "module_command", lambda *_: [sys.executable, "-c", program]
        )

    return make


def slot_of(folder: Path) -> DeviceSlot:
    problem = ProblemSource("attention", "float32", Path())
    return DeviceSlot(folder, PROFILE, problem, deterministic=True)


def lost(slot: DeviceSlot) -> Outcome:
    slot.start(TrialRequest(number=1, cases=()))
    while True:
        assert slot.child is not None
        device_slot.time.sleep(0.01)
        answer = slot.handle()
        if answer is not None:
            assert isinstance(answer, Outcome)
            return answer


@pytest.mark.sweep(3)
@pytest.mark.parametrize("how", WRONG)
def test_a_device_worker_that_sends_one_is_lost_and_the_reason_says_why(
    tmp_path: Path, lying: Liar, how: str
) -> None:
    message, words = WRONG[how]
    lying(message, ANSWERS_HELLO + "hear()")
    slot = slot_of(tmp_path)
    try:
        outcome = lost(slot)
    finally:
        slot.close()
    assert outcome.kind is OutcomeKind.WORKER_LOST
    assert outcome.reason.startswith("the device worker sent a message that cannot be read: ")
    assert words in outcome.reason
    assert outcome.flags == (QUARANTINED,)


@pytest.mark.parametrize("answer", [Prepared(token="guessed"), Opened(token="")])
def test_what_a_device_worker_says_without_having_been_asked_is_no_answer(
    tmp_path: Path, lying: Liar, answer: msgspec.Struct
) -> None:
    lying(msgspec.to_builtins(answer), ANSWERS_HELLO + "hear()")
    slot = slot_of(tmp_path)
    try:
        outcome = lost(slot)
    finally:
        slot.close()
    assert outcome.reason.endswith("cannot be read: its answer belongs to no request")


ANSWERS_WITH_BASELINES = """
from evotune.workers.messages import BaselinesTimed, TrialRequest
from evotune.workers.executor import BaselineReport
token = msgspec.msgpack.decode(hear(), type=TrialRequest).token
say(encode(BaselinesTimed(token=token, report=BaselineReport((), 0.0))))
hear()
"""


def test_the_answer_to_another_question_is_none(tmp_path: Path, lying: Liar) -> None:
    lying(b"", ANSWERS_HELLO + ANSWERS_WITH_BASELINES)
    slot = slot_of(tmp_path)
    try:
        outcome = lost(slot)
    finally:
        slot.close()
    assert outcome.reason.endswith("cannot be read: its answer belongs to no request")


def test_a_device_worker_that_sends_one_while_it_opens_does_not_start(
    tmp_path: Path, lying: Liar
) -> None:
    lying(WRONG["unknown tag"][0])
    slot = slot_of(tmp_path)
    words = "does not start: the device worker sent a message that cannot be read: Invalid value"
    try:
        with pytest.raises(EnvironmentProblem, match=words):
            lost(slot)
    finally:
        slot.close()


def pool_in(folder: Path) -> CompilePool:
    return CompilePool(folder / "logs", folder / "cache", processes=1, timeout_s=PATIENCE_S)


def compiled(pool: CompilePool) -> Any:
    pool.submit(compile_job("none"))
    while True:
        for _, result in pool.wait(0.5):
            return result


STARTED = f"say({msgspec.msgpack.encode(Started())!r})\nhear()"


@pytest.mark.parametrize("how", ["unknown tag", "no object", "truncated"])
def test_a_compile_process_that_sends_one_fails_its_job(
    tmp_path: Path, lying: Liar, how: str
) -> None:
    message, words = WRONG[how]
    lying(message, STARTED)
    pool = pool_in(tmp_path)
    try:
        found = compiled(pool)
    finally:
        pool.close()
    assert isinstance(found, CompileFailure)
    assert found.kind is OutcomeKind.COMPILE_CRASH
    assert found.reason.startswith("the compile process sent a message that cannot be read: ")
    if how != "truncated":
        assert words in found.reason


def test_a_readable_message_that_comes_along_with_one_counts(tmp_path: Path, lying: Liar) -> None:
    together = "".join(
        f"struct.pack('>I', {len(part)}) + {part!r} + "
        for part in (msgspec.msgpack.encode(Started()), body([1]))
    )
    lying(b"", f"os.write(1, {together}b'')\nhear()\nhear()")
    pool = pool_in(tmp_path)
    try:
        found = compiled(pool)
    finally:
        pool.close()
    assert isinstance(found, CompileFailure)
    assert found.reason.startswith("the compile process sent a message that cannot be read: ")


def test_compile_processes_that_start_with_one_end_the_run(tmp_path: Path, lying: Liar) -> None:
    lying(WRONG["no object"][0])
    pool = pool_in(tmp_path)
    words = "do not start: the compile process sent a message that cannot be read: Expected"
    try:
        with pytest.raises(EnvironmentProblem, match=words):
            compiled(pool)
    finally:
        pool.close()


@pytest.mark.parametrize("how", ["unknown tag", "no object"])
def test_a_problem_worker_that_sends_one_is_named(tmp_path: Path, lying: Liar, how: str) -> None:
    lying(WRONG[how][0])
    child = Child(PROBLEM_WORKER, tmp_path / "problem.log", {})
    source = ProblemSource("mine.py", "float32", tmp_path)
    try:
        child._process.stdin.write(b"\0\0\0\0")  # type: ignore[union-attr]
        child._process.stdin.flush()  # type: ignore[union-attr]
        words = problem_check._answer(child, source).mistake
    finally:
        child.kill()
    assert words.startswith("mine.py: the process that tried it sent a message that cannot be read")


# --- the other direction ------------------------------------------------------------------------


@pytest.fixture(
    params=[COMPILE_WORKER, DEVICE_WORKER, PROBLEM_WORKER],
    ids=lambda w: w.module.rpartition(".")[2],
)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Child[Any, Any]]:
    wire: Wire[Any, Any] = request.param
    made = Child(wire, tmp_path / "worker.log", {})
    yield made
    made.kill()


def test_a_worker_that_cannot_read_a_message_ends_and_its_last_line_says_why(
    worker: Child[Any, Any],
) -> None:
    worker.send(Opened(token="nobody tells a worker that"))
    assert worker._process.wait(PATIENCE_S) == CANNOT_READ
    (line,) = worker.log_tail().splitlines()
    assert line.startswith(f"{worker._wire.worker} cannot read a message: ")


@pytest.mark.soak
def test_a_device_worker_that_cannot_read_its_hello_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = slot_of(tmp_path)
    slot._hello = Opened()  # type: ignore[assignment]
    words = "device worker does not start: the device worker cannot read a message: Invalid value"
    try:
        with pytest.raises(EnvironmentProblem, match=words):
            lost(slot)
    finally:
        slot.close()


def test_a_problem_worker_that_cannot_read_its_request_is_the_machine_s_problem(
    tmp_path: Path,
) -> None:
    child = Child(PROBLEM_WORKER, tmp_path / "problem.log", {})
    try:
        child.send(Opened())  # type: ignore[arg-type]
        with pytest.raises(EnvironmentProblem, match=r"cannot be tried: .* cannot read a message"):
            problem_check._answer(child, ProblemSource("mine.py", "float32", tmp_path))
    finally:
        child.kill()


def test_a_build_that_cannot_read_its_job_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perturbed_build, "encode", lambda job: b"\xc1")
    found = perturbed_build.build(compile_job("none"), tmp_path, 60.0)
    assert all(str(each).startswith("the job cannot be read: ") for each in found.values())
    assert set(found) == set(perturbed_build.WAYS)


def test_a_sanitized_launch_that_cannot_read_its_job_ends_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "job").write_bytes(body({"type": "Nonsense"}))
    command = [
        sys.executable,
        "-m",
        "evotune.backends.cuda.sanitized_launch",
        str(tmp_path / "job"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("the job cannot be read: ")


# --- a cluster ------------------------------------------------------------------------------------


class Client:
    """Ends each task at once with the given answer."""

    status = "running"

    def __init__(self, answer: object = None) -> None:
        self._answer = answer

    def scheduler_info(self, **_: object) -> dict[str, Any]:
        return {"workers": {"tcp://here": {}}}

    def submit(self, task: Any, message: bytes, **_: object) -> Any:
        return SimpleNamespace(
            status="finished",
            done=lambda: True,
            result=lambda timeout: self._answer,
        )

    def cancel(self, futures: object, force: bool = False) -> None: ...


@pytest.mark.parametrize("answer", [b"\xc1", body({"type": "Nonsense"}), {"outcome": 1}, None])
def test_a_cluster_worker_that_answers_one_ends_the_run(answer: object) -> None:
    words = "worker of the cluster sent a message that cannot be read: .*install the same evotune"
    with pytest.raises(EnvironmentProblem, match=words):
        ask_each(Client(answer), cluster_run.answer, DescribeDevice("cpu", "1"))


@pytest.mark.parametrize("message", [b"\xc1", body({"type": "ClusterTrial", "number": 1})])
def test_a_cluster_worker_that_cannot_read_a_message_says_so(message: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        cluster_run.answer(message)
