"""An outcome that something else may have caused is checked once more, in a fresh worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from evotune.backends.base.launch import DeviceProfile
from evotune.trial import Configuration, Outcome, OutcomeKind
from evotune.workers.compile_pool import CompilePool
from evotune.workers.device_slot import DeviceSlot, ProblemSource, Worker
from evotune.workers.executor import Proposal
from evotune.workers.in_flight import InFlight
from evotune.workers.local import LocalExecutor
from evotune.workers.messages import (
    FromDeviceWorker,
    Hello,
    Opened,
    ToDeviceWorker,
    TrialDone,
    TrialRequest,
)

WRONG = Outcome(OutcomeKind.WRONG_RESULT, reason="off")
RIGHT = Outcome(OutcomeKind.OK, fitness=0.5)
LOST = Outcome(OutcomeKind.DEVICE_LOST, reason="uncorrectable ECC error")


class Pool:
    """Proposals without cases need no compiler."""

    running = queued = 0

    def start_queued(self) -> None: ...

    def expire(self) -> list[object]:
        return []

    def children(self) -> list[object]:
        return []


class FakeWorker:
    """A worker that answers each trial with the next of the answers that all workers share."""

    unreadable = ""
    pid = 0

    def __init__(self, answers: list[TrialDone]) -> None:
        self._answers = answers
        self._messages: list[FromDeviceWorker] = []
        self._read_fd, write_fd = os.pipe()
        os.close(write_fd)  # it is always readable

    def fileno(self) -> int:
        return self._read_fd

    def send(self, message: ToDeviceWorker) -> None:
        if isinstance(message, Hello):
            self._messages.append(Opened(token=message.token))
        elif isinstance(message, TrialRequest):
            answer = self._answers.pop(0)
            self._messages.append(msgspec.structs.replace(answer, token=message.token))

    def receive(self) -> list[FromDeviceWorker]:
        messages, self._messages = self._messages, []
        return messages

    def log_tail(self, limit: int = 0) -> str:
        return ""

    def kill(self) -> int:
        os.close(self._read_fd)
        return 0


Tried = Callable[..., tuple[list[Outcome], int]]


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    """The outcomes of so many trials on one device, and the number of its workers."""

    def run(trials: int, *answers: TrialDone) -> tuple[list[Outcome], int]:
        left, workers = list(answers), list[FakeWorker]()

        def spawn(slot: DeviceSlot) -> Worker:
            workers.append(FakeWorker(left))
            return cast(Worker, workers[-1])

        monkeypatch.setattr(DeviceSlot, "_spawn", spawn)
        profile = DeviceProfile("cpu", "cpu", "", {"threads": 1})
        problem = ProblemSource("attention", "float32", Path())
        slot = DeviceSlot(tmp_path, profile, problem, deterministic=True)
        executor = LocalExecutor(cast(CompilePool, Pool()), [slot], exclusive=False)
        outcomes = []
        for number in range(trials):
            proposal = Proposal(number, Configuration({"A": 1}), device=0)
            executor._reviewed(number, InFlight(proposal))
            ((_, outcome),) = executor.poll(5.0)
            outcomes.append(msgspec.structs.replace(outcome, stage_s={}, binary=""))
        slot.close()
        assert not left
        return outcomes, len(workers)

    return run


def done(outcome: Outcome, **flags: bool) -> TrialDone:
    return TrialDone(outcome=outcome, **flags)


@pytest.mark.parametrize("retire", [False, True])
@pytest.mark.parametrize("second", [RIGHT, WRONG])
def test_a_used_worker_s_verdict_is_checked_in_a_fresh_one(
    tried: Tried, second: Outcome, retire: bool
) -> None:
    """Also where the worker must measure nothing more."""
    doubtful = done(WRONG, doubtful=True, retire=retire)
    assert tried(2, done(RIGHT), doubtful, done(second)) == ([RIGHT, second], 2)


def test_the_second_verdict_counts_even_if_it_is_doubtful_too(tried: Tried) -> None:
    doubtful = done(WRONG, doubtful=True)
    assert tried(2, done(RIGHT), doubtful, doubtful) == ([RIGHT, WRONG], 2)


@pytest.mark.parametrize("retire", [False, True])
def test_a_fresh_worker_is_believed_at_once(tried: Tried, retire: bool) -> None:
    """No earlier candidate can have caused the outcome."""
    assert tried(1, done(WRONG, doubtful=True, retire=retire)) == ([WRONG], 1)


def test_where_nothing_is_doubtful_it_is_believed_at_once(tried: Tried) -> None:
    assert tried(2, done(RIGHT), done(WRONG)) == ([RIGHT, WRONG], 1)


@pytest.mark.parametrize("earlier", [0, 1])
@pytest.mark.parametrize("second", [RIGHT, LOST])
def test_a_trial_that_lost_the_device_is_tried_twice(
    tried: Tried, earlier: int, second: Outcome
) -> None:
    """Also in a fresh worker: the device is to blame, or the candidate."""
    before = [done(RIGHT)] * earlier
    outcomes, _ = tried(earlier + 1, *before, done(LOST, retire=True), done(second, retire=True))
    assert outcomes[-1] == second
