"""A wrong result from a used worker is checked again: its references may have been damaged."""

from __future__ import annotations

from typing import cast

import pytest

from evotune.execute.compile_pool import CompilePool
from evotune.execute.device_slot import DeviceSlot
from evotune.execute.executor import Proposal
from evotune.execute.in_flight import InFlight
from evotune.execute.local import LocalExecutor
from evotune.execute.messages import TrialDone
from evotune.trial import Configuration, Outcome, OutcomeKind

WRONG = Outcome(OutcomeKind.WRONG_RESULT, reason="off")
RIGHT = Outcome(OutcomeKind.OK, fitness=0.5)


class Pool:
    """Proposals without cases need no compiler."""

    running = queued = 0

    def start_queued(self) -> None: ...

    def expire(self) -> list[object]:
        return []

    def children(self) -> list[object]:
        return []


class Device:
    """Answers each request with the next outcome; its worker served one request before."""

    child = None

    def __init__(self, *answers: Outcome, doubtful: bool = True) -> None:
        self._answers = list(answers)
        self._doubtful = doubtful
        self._served = 1
        self.busy = False
        self.requests = 0

    @property
    def alone(self) -> bool:
        return self._served <= 1

    def start(self, request: object) -> None:
        self._served += 1
        self.requests += 1
        self.busy = True

    def renew(self) -> None:
        self._served = 0
        self.busy = False

    def expire(self) -> TrialDone:
        self.busy = False
        outcome = self._answers.pop(0)
        return TrialDone(outcome=outcome, doubtful=self._doubtful and not outcome.ok)


def tried(device: Device) -> Outcome:
    executor = LocalExecutor(cast(CompilePool, Pool()), [cast(DeviceSlot, device)], exclusive=False)
    executor._reviewed(7, InFlight(Proposal(7, Configuration({"A": 1}))))
    ((number, outcome),) = executor.poll(5.0)
    assert number == 7
    return outcome


@pytest.mark.parametrize(
    ("answers", "kind", "requests"),
    [
        ((WRONG, RIGHT), OutcomeKind.OK, 2),  # the worker's references were spoilt
        ((WRONG, WRONG), OutcomeKind.WRONG_RESULT, 2),  # the candidate is wrong; two tries suffice
        ((RIGHT,), OutcomeKind.OK, 1),
    ],
)
def test_a_used_worker_s_verdict_is_checked_in_a_fresh_one(
    answers: tuple[Outcome, ...], kind: OutcomeKind, requests: int
) -> None:
    device = Device(*answers)
    assert tried(device).kind is kind
    assert device.requests == requests


def test_where_nothing_is_doubtful_it_is_believed_at_once() -> None:
    device = Device(WRONG, doubtful=False)
    assert tried(device).kind is OutcomeKind.WRONG_RESULT
    assert device.requests == 1
