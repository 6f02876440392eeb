"""A cluster worker's part in a run, whose executor finishes no trial by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import pytest

from evotune.backends.base.launch import DeviceProfile
from evotune.errors import EvotuneError
from evotune.runs import cluster_run
from evotune.runs.cluster_run import ClusterRequest, connected
from evotune.trial import Configuration, Outcome, OutcomeKind
from evotune.util.channel import decode, encode
from evotune.workers.executor import Proposal
from evotune.workers.messages import (
    FROM_CLUSTER_WORKER,
    ClusterTrial,
    ClusterTrialDone,
    FromClusterWorker,
    Refused,
)
from tests.patience import PATIENCE_S

from .cluster_tasks import RUN

EMPTY = msgspec.structs.replace(RUN, files={})


class Stuck:
    """A local executor whose trials do not finish before the test says so, by `done`."""

    step = ""

    def __init__(self) -> None:
        self.submitted: list[Proposal] = []
        self.done: list[tuple[int, Outcome]] = []
        self.closed = False

    def submit(self, proposal: Proposal) -> None:
        self.submitted.append(proposal)

    def set_contender(self, fitness: float) -> None: ...

    def wake(self) -> None: ...

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        time.sleep(0.01)
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Stuck]]:
    """Every executor that the worker opened."""
    opened: list[Stuck] = []

    def propose(number: int, configuration: Configuration, *, confirm: bool) -> Proposal:
        return Proposal(number, configuration, confirm=confirm)

    setup = SimpleNamespace(
        profile=DeviceProfile("cpu", "cpu", "", {}), planner=SimpleNamespace(proposal=propose)
    )
    monkeypatch.setattr(cluster_run, "load_kernel_setup", lambda *_, **__: setup)

    def open_one(*_: object, **__: object) -> Stuck:
        opened.append(Stuck())
        return opened[-1]

    monkeypatch.setattr(cluster_run, "open_kernel_executor", open_one)
    monkeypatch.setattr(cluster_run, "_own_address", lambda: "tcp://here")
    monkeypatch.setattr(cluster_run, "_here", None)
    yield opened
    if cluster_run._here is not None:
        cluster_run._here.close()
    for thread in threading.enumerate():  # none may look at the worker when it is Dask's again
        if isinstance(thread, Asked):
            thread.join(PATIENCE_S)


def trial(part: str, number: int, *, confirm: bool = False) -> ClusterTrial:
    return ClusterTrial(
        run=msgspec.structs.replace(EMPTY, part=part),
        number=number,
        configuration={},
        confirm=confirm,
        repeat=0,
        contender=0.0,
    )


class Asked(threading.Thread):
    """A thread of the worker that runs one trial."""

    def __init__(self, part: str, number: int, *, confirm: bool = False) -> None:
        super().__init__(daemon=True)
        self._message = encode(trial(part, number, confirm=confirm))
        self.answer: FromClusterWorker | None = None
        self.start()

    def run(self) -> None:
        self.answer = decode(FROM_CLUSTER_WORKER, cluster_run.answer(self._message))


def wait_for_trials(executors: list[Stuck], counts: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while [len(each.submitted) for each in executors] != counts:
        assert time.monotonic() < deadline, f"not {counts} trials"
        time.sleep(0.005)


def test_trials_of_a_part_that_has_ended_free_their_threads(executors: list[Stuck]) -> None:
    old = [Asked("old", 0), Asked("old", 1)]
    wait_for_trials(executors, [2])
    Asked("new", 0)
    wait_for_trials(executors, [2, 1])
    assert executors[0].closed
    for each in old:
        each.join(PATIENCE_S)
        assert isinstance(each.answer, Refused)
        assert "has ended" in each.answer.reason


def test_a_champion_is_not_confirmed_by_the_outcome_of_its_trial(executors: list[Stuck]) -> None:
    """Dask may ask two workers for a trial; one may still measure it when the search is over."""
    searched = Asked("part", 3)
    wait_for_trials(executors, [1])
    confirmed = Asked("part", 3, confirm=True)
    time.sleep(0.1)
    found = [Outcome(OutcomeKind.OK, fitness=fitness) for fitness in (0.1, 0.2)]
    executors[0].done.append((3, found[0]))
    wait_for_trials(executors, [2])
    assert [each.confirm for each in executors[0].submitted] == [False, True]
    executors[0].done.append((3, found[1]))
    for thread, outcome in zip((searched, confirmed), found, strict=True):
        thread.join(PATIENCE_S)
        assert isinstance(thread.answer, ClusterTrialDone)
        assert thread.answer.outcome == outcome


def test_a_trial_that_comes_to_a_closed_part_does_not_wait(executors: list[Stuck]) -> None:
    closed = cluster_run._open(trial("old", 0).run)
    closed.close()
    refused: list[EvotuneError] = []

    def late() -> None:
        try:
            closed.trial(trial("old", 0))
        except EvotuneError as error:
            refused.append(error)

    thread = threading.Thread(target=late, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert ["has ended" in str(error) for error in refused] == [True]
    assert executors[0].submitted == []


def test_the_end_of_a_part_gives_the_device_back_for_good(executors: list[Stuck]) -> None:
    waiting = Asked("ending", 0)
    wait_for_trials(executors, [1])
    cluster_run.end_part("another")
    assert not executors[0].closed
    cluster_run.end_part("ending")
    assert executors[0].closed
    assert cluster_run._here is None
    waiting.join(PATIENCE_S)
    late = Asked("ending", 1)  # Dask had begun it before it heard of its cancellation
    late.join(PATIENCE_S)
    for each in (waiting, late):
        assert isinstance(each.answer, Refused)
        assert "has ended" in each.answer.reason
    assert len(executors) == 1


@pytest.mark.filterwarnings("default")  # Dask's
def test_workers_give_their_devices_back_when_the_coordinator_ends(
    executors: list[Stuck],
) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(  # its worker is a thread of this process
        n_workers=1, processes=False, dashboard_address=None, protocol="tcp", host="127.0.0.1"
    ) as dask:
        with connected(ClusterRequest(dask.scheduler_address)) as cluster:
            assert cluster is not None
            cluster_run._open(msgspec.structs.replace(EMPTY, part=cluster.part))
            assert not executors[0].closed
        assert executors[0].closed
