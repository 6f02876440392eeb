"""The coordinator's executor of a cluster, with a Dask client in memory that loses what it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evotune.device.channel import decode, encode
from evotune.engine._cluster_worker import answer
from evotune.execute.cluster_executor import ClusterExecutor
from evotune.execute.executor import Proposal
from evotune.execute.in_flight import Twins
from evotune.execute.messages import (
    TO_CLUSTER_WORKER,
    ClusterRun,
    ClusterTrial,
    ClusterTrialDone,
)
from evotune.trial import Configuration, Outcome, OutcomeKind

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


class Task:
    """A task that Dask has, and its future."""

    def __init__(self, message: bytes, key: str, workers: Sequence[str] | None) -> None:
        told = decode(TO_CLUSTER_WORKER, message)
        assert isinstance(told, ClusterTrial)
        self.told = told
        self.key = key
        self.workers = workers
        self.status = "pending"
        self._answer = b""
        self._calls: list[Callable[[Task], None]] = []

    def add_done_callback(self, call: Callable[[Task], None]) -> None:
        self._calls.append(call)

    def end(self, status: str, answer: bytes = b"") -> None:
        self.status, self._answer = status, answer
        for call in self._calls:
            call(self)

    def result(self, timeout: float) -> bytes:
        return self._answer


class Client:
    """Keeps the tasks that it was sent; `workers` are there."""

    def __init__(self, *workers: str) -> None:
        self.status = "running"
        self.workers = list(workers)
        self.tasks: list[Task] = []

    def submit(
        self, task: Any, message: bytes, *, key: str, workers: Sequence[str] | None, **_: object
    ) -> Task:
        self.tasks.append(Task(message, key, workers))
        return self.tasks[-1]

    def cancel(self, futures: object, force: bool = False) -> None: ...

    def scheduler_info(self, **_: object) -> dict[str, Any]:
        return {"workers": {address: {} for address in self.workers}}


def done(fitness: float = 0.5) -> bytes:
    return encode(ClusterTrialDone(Outcome(OutcomeKind.OK, fitness=fitness)))


def test_trials_that_a_lost_connection_cancelled_are_sent_again() -> None:
    client = Client("tcp://here")
    executor = ClusterExecutor(client, answer, RUN, twins=Twins())
    executor.submit(Proposal(3, Configuration({"N": 1})))
    client.status = "connecting"  # Dask cancels all futures before it connects again
    client.tasks[0].end("cancelled")
    assert executor.poll(0.1) == []
    assert len(client.tasks) == 1
    client.status = "running"
    assert executor.poll(1.5) == []
    assert [task.told.number for task in client.tasks] == [3, 3]
    client.tasks[1].end("finished", done())
    ((number, outcome),) = executor.poll(5.0)
    assert (number, outcome.fitness) == (3, 0.5)
    assert executor.poll(0.0) == []
