"""The coordinator's executor of a cluster, with a Dask client in memory that loses what it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from evotune.errors import EnvironmentProblem
from evotune.runs.cluster_run import answer
from evotune.trial import Configuration, Outcome, OutcomeKind
from evotune.util.channel import decode, encode
from evotune.workers import cluster_executor
from evotune.workers.cluster_executor import ClusterExecutor
from evotune.workers.executor import Proposal
from evotune.workers.in_flight import Twins
from evotune.workers.messages import (
    TO_CLUSTER_WORKER,
    ClusterRun,
    ClusterTrial,
    ClusterTrialDone,
)
from tests.patience import PATIENCE_S

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
    return encode(ClusterTrialDone(Outcome(OutcomeKind.OK, fitness=fitness), "tcp://here"))


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
    ((number, outcome),) = executor.poll(PATIENCE_S)
    assert (number, outcome.fitness) == (3, 0.5)
    assert executor.poll(0.0) == []


def champion(device: int, *, repeat: int = 0) -> Proposal:
    return Proposal(7, Configuration({}), confirm=not repeat, repeat=repeat, device=device)


def measured(worker: str, model: str) -> bytes:
    outcome = Outcome(OutcomeKind.OK, fitness=0.5, resources={"device": {"model": model}})
    return encode(ClusterTrialDone(outcome, worker))


def searched(client: Client, executor: ClusterExecutor, models: dict[str, str]) -> None:
    """A trial of the search on each of the workers."""
    for number, (worker, model) in enumerate(models.items()):
        executor.submit(Proposal(number, Configuration({})))
        assert client.tasks[-1].workers is None
        client.tasks[-1].end("finished", measured(worker, model))
    assert len(executor.poll(PATIENCE_S)) == len(models)


@pytest.mark.parametrize("repeat", [0, 2])
def test_a_champion_meets_one_worker_of_its_model(repeat: int) -> None:
    client = Client("tcp://a", "tcp://b", "tcp://c")
    executor = ClusterExecutor(client, answer, RUN, twins=Twins(), models=["L4", "H200", "H200"])
    searched(client, executor, {"tcp://c": "H200", "tcp://a": "L4", "tcp://b": "H200"})
    executor.submit(champion(1, repeat=repeat))
    assert client.tasks[-1].workers == ["tcp://b"]
    executor.submit(champion(0, repeat=repeat))
    assert client.tasks[-1].workers == ["tcp://a"]


def test_a_champion_that_met_another_model_is_confirmed_elsewhere() -> None:
    client = Client("tcp://a", "tcp://b")
    executor = ClusterExecutor(client, answer, RUN, twins=Twins(), models=["H200", "L4"])
    executor.submit(champion(0))
    assert client.tasks[-1].workers == ["tcp://a"]
    client.tasks[-1].end("finished", measured("tcp://a", "L4"))
    assert executor.poll(0.1) == []
    assert client.tasks[-1].workers == ["tcp://b"]
    client.tasks[-1].end("finished", measured("tcp://b", "H200"))
    ((number, outcome),) = executor.poll(PATIENCE_S)
    assert (number, outcome.device_model) == (7, "H200")


def test_a_champion_whose_worker_dies_goes_to_another_of_its_model() -> None:
    client = Client("tcp://a", "tcp://b", "tcp://c")
    executor = ClusterExecutor(client, answer, RUN, twins=Twins(), models=["L4", "H200", "H200"])
    searched(client, executor, {"tcp://a": "H200", "tcp://b": "L4", "tcp://c": "H200"})
    executor.submit(champion(1))
    assert client.tasks[-1].workers == ["tcp://a"]
    client.workers.remove("tcp://a")
    assert executor.poll(1.5) == []
    assert client.tasks[-1].workers == ["tcp://c"]


def test_a_champion_without_a_worker_of_its_model_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_executor, "_WORKERS_GONE_S", 0.5)
    client = Client("tcp://a")
    executor = ClusterExecutor(client, answer, RUN, twins=Twins(), models=["H200", "L4"])
    searched(client, executor, {"tcp://a": "L4"})
    executor.submit(champion(0))
    with pytest.raises(EnvironmentProblem, match="for this run: those of a champion's GPU model"):
        executor.poll(PATIENCE_S)
