"""A champion that is timed again on a cluster is no trial of the search."""

from __future__ import annotations

from typing import Any

import pytest

from evotune.execute.cluster import ClusterExecutor
from evotune.execute.protocol import Proposal
from evotune.execute.twins import Twins
from evotune.trial import Configuration, Outcome, OutcomeKind

SEARCHED = Outcome(OutcomeKind.OK, fitness=0.9, binary="b" * 64)
TIMED_AGAIN = Outcome(OutcomeKind.OK, fitness=0.5, binary="b" * 64)


class Done:
    """A future that has ended."""

    status = "finished"

    def __init__(self, key: str) -> None:
        self.key = key

    def result(self, timeout: float) -> dict[str, Any]:
        return {"outcome": TIMED_AGAIN.to_json()}

    def add_done_callback(self, call: Any) -> None:
        call(self)


class Client:
    """Ends each task at once, and keeps what it was sent."""

    status = "running"

    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []

    def submit(self, task: Any, payload: dict[str, Any], *, key: str, **rest: object) -> Done:
        self.payloads.append(payload)
        return Done(key)

    def cancel(self, futures: object, force: bool = False) -> None: ...

    def scheduler_info(self, **rest: object) -> dict[str, Any]:
        return {"workers": {"tcp://here": {}}}


@pytest.mark.parametrize("repeat", [True, False])
def test_its_worker_is_told_and_its_figures_are_its_own(repeat: bool) -> None:
    client = Client()
    twins = Twins()
    twins.remember(3, SEARCHED)
    executor = ClusterExecutor(client, print, {}, twins=twins)
    executor.submit(Proposal(3, Configuration({"N": 1}), repeat=repeat))
    ((number, outcome),) = executor.poll(5.0)
    assert (number, client.payloads[0]["repeat"]) == (3, repeat)
    assert outcome.fitness == (TIMED_AGAIN if repeat else SEARCHED).fitness
