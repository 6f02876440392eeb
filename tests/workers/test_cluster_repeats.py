"""A champion that is timed again on a cluster is not treated as a trial of the search."""

from __future__ import annotations

from typing import Any

import pytest

from evotune.runs.cluster_run import answer
from evotune.trial import Configuration, Outcome, OutcomeKind
from evotune.util.channel import decode, encode
from evotune.workers.cluster_executor import ClusterExecutor
from evotune.workers.executor import Proposal
from evotune.workers.in_flight import Twins
from evotune.workers.messages import (
    TO_CLUSTER_WORKER,
    ClusterRun,
    ClusterTrial,
    ClusterTrialDone,
    ToClusterWorker,
)

RUN = ClusterRun(
    part="s",
    files={},
    space_file="space.yaml",
    backend="cpu",
    device_name="cpu",
    device_arch="",
    allow_mixed=False,
    fixed_sampling=False,
    secret="",
)
SEARCHED = Outcome(OutcomeKind.OK, fitness=0.9, binary="b" * 64)
STAGE_S = {"compile": 2.0, "measure": 1.0}
TIMED_AGAIN = Outcome(OutcomeKind.OK, fitness=0.5, binary="b" * 64, stage_s=STAGE_S)


class Done:
    """A future that has ended."""

    status = "finished"

    def __init__(self, key: str) -> None:
        self.key = key

    def result(self, timeout: float) -> bytes:
        return encode(ClusterTrialDone(TIMED_AGAIN, "tcp://here"))

    def add_done_callback(self, call: Any) -> None:
        call(self)


class Client:
    """Ends each task at once, and keeps the messages that it was sent."""

    status = "running"

    def __init__(self) -> None:
        self.told: list[ToClusterWorker] = []

    def submit(self, task: Any, message: bytes, *, key: str, **rest: object) -> Done:
        self.told.append(decode(TO_CLUSTER_WORKER, message))
        return Done(key)

    def cancel(self, futures: object, force: bool = False) -> None: ...

    def scheduler_info(self, **rest: object) -> dict[str, Any]:
        return {"workers": {"tcp://here": {}}}


@pytest.mark.parametrize("repeat", [2, 0])
def test_its_worker_is_told_and_its_figures_are_its_own(repeat: int) -> None:
    client = Client()
    twins = Twins()
    twins.remember(3, SEARCHED)
    executor = ClusterExecutor(client, answer, RUN, twins=twins)
    executor.submit(Proposal(3, Configuration({"N": 1}), repeat=repeat))
    ((number, outcome),) = executor.poll(5.0)
    (told,) = client.told
    assert isinstance(told, ClusterTrial)
    assert (number, told.repeat) == (3, repeat)
    assert outcome.fitness == (TIMED_AGAIN if repeat else SEARCHED).fitness
    assert outcome.stage_s == STAGE_S, "the time was spent, whichever outcome stands"
