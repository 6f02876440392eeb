"""The executor of a Dask cluster: Dask places trials and restarts workers, evotune does the rest.

A worker that dies, joins late or returns changes only how long a run takes: the trials of a dead
worker are submitted again, to any worker, and one outcome of each trial is kept. A candidate can
end the device process that runs it, but not the cluster's worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import msgspec

from evotune.errors import EnvironmentProblem
from evotune.trial import Outcome, OutcomeKind
from evotune.util.channel import UnreadableMessage, decode, encode
from evotune.workers.executor import Proposal
from evotune.workers.in_flight import Twins, speaks_for_its_code
from evotune.workers.messages import (
    FROM_CLUSTER_WORKER,
    ClusterRun,
    ClusterTrial,
    ClusterTrialDone,
    FromClusterWorker,
    Refused,
    ToClusterWorker,
)

_MOST_LOSSES = 3
"""A trial that Dask reports as KilledWorker is sent again this many times. Dask reports it only
after several workers have died."""
_FETCH_S = 5.0
_ANSWER_S = 900.0  # as long as baselines may take
_SCHEDULER_GONE_S = 30.0
_WORKERS_GONE_S = 60.0  # no worker may take some trial: the others refused or have another model

Task = Callable[[bytes], bytes]
"""A function that runs on a cluster's worker: it takes an encoded message and returns the encoded
answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Sent:
    """A trial that Dask has. `workers` are the addresses that may take it; None: all."""

    future: Any
    proposal: Proposal
    losses: int
    workers: Sequence[str] | None


class ClusterExecutor:
    """See `evotune.workers.executor.Executor`.

    - `task` runs the trials of `run` on the workers.
    - `twins`: see `LocalExecutor`.
    - `models`: the model of each device that a proposal may name.
    """

    def __init__(
        self,
        client: Any,
        task: Task,
        run: ClusterRun,
        *,
        twins: Twins,
        models: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._task = task
        self._run = run
        self._twins = twins
        self._models = models
        self._model_of: dict[str, str] = {}  # by the address of a worker that has measured
        self._contender = float("-inf")
        self._refused: dict[str, str] = {}
        self._running: dict[str, _Sent] = {}  # by the future's key
        self._stranded: list[tuple[Proposal, int]] = []
        self._looked_s = self._placed_s = time.monotonic()
        self._finished: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._done: list[tuple[int, Outcome]] = []
        self._reached_s = time.monotonic()

    @property
    def step(self) -> str:
        """Always "", because a task reports nothing before its end."""
        return ""

    def submit(self, proposal: Proposal) -> None:
        if proposal.rejection:
            outcome = Outcome(OutcomeKind.REJECTED, reason=proposal.rejection)
            self._done.append((proposal.number, outcome))
            return
        self._send(proposal, losses=0)

    def set_contender(self, fitness: float) -> None:
        self._contender = fitness

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        """See `Executor`. Raises EnvironmentProblem if the scheduler is gone, or if no worker can
        work for the run."""
        deadline = time.monotonic() + timeout_s
        while not self._done and (left_s := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._take(self._finished.get(timeout=min(0.2, left_s)))
            self._check_scheduler()
            self._check_workers()
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._finished.get_nowait())
        done, self._done = self._done, []
        return done

    def drop(self) -> None:
        futures = [sent.future for sent in self._running.values()]
        self._running.clear()
        self._stranded.clear()
        self._done.clear()
        if futures and self._client.status == "running":
            self._client.cancel(futures, force=True)

    def close(self) -> None:
        self.drop()

    def _send(self, proposal: Proposal, losses: int) -> None:
        workers = self._may_take(proposal)
        if workers is not None and not workers:
            self._stranded.append((proposal, losses))
            return
        key = f"evotune-{proposal.number}-{uuid.uuid4().hex}"
        future = self._client.submit(
            self._task,
            encode(
                ClusterTrial(
                    run=self._run,
                    number=proposal.number,
                    configuration=proposal.configuration.to_json(),
                    confirm=proposal.confirm,
                    repeat=proposal.repeat,
                    contender=self._contender,
                )
            ),
            key=key,
            pure=False,
            workers=workers,
        )
        self._running[key] = _Sent(future, proposal, losses, workers)
        future.add_done_callback(lambda done: self._finished.put(done.key))

    def _take(self, key: str) -> None:
        if key not in self._running:
            return  # dropped
        sent = self._running.pop(key)
        future, proposal, losses = sent.future, sent.proposal, sent.losses
        if future.status == "finished":
            try:
                answer = _read(future.result(timeout=_FETCH_S))
            except (TimeoutError, CancelledError):
                # The worker died with the answer; Dask would wait until it is computed again.
                self._client.cancel([future], force=True)
                self._send(proposal, losses)
                return
            if isinstance(answer, Refused):
                self._refused[answer.worker] = answer.reason
                self._send(proposal, losses)
            elif isinstance(answer, ClusterTrialDone):
                self._answered(proposal, losses, answer)
            else:
                raise _cannot_read(f"a trial was answered with {type(answer).__name__}")
        elif future.status == "error":
            self._failed(proposal, losses, future.exception())
        elif self._client.status == "running":  # Dask lost the task with its worker
            self._send(proposal, losses)
        else:  # Dask cancels all tasks when it loses the connection to the scheduler
            self._stranded.append((proposal, losses))

    def _failed(self, proposal: Proposal, losses: int, error: BaseException) -> None:
        if type(error).__name__ != "KilledWorker":
            raise _cannot_run(error)
        if losses < _MOST_LOSSES:
            self._send(proposal, losses + 1)
        else:
            reason = f"{losses + 1} times, several of the cluster's workers died with it"
            self._finish(proposal, Outcome(OutcomeKind.WORKER_LOST, reason=reason))

    def _answered(self, proposal: Proposal, losses: int, answer: ClusterTrialDone) -> None:
        model = answer.outcome.device_model
        if model:
            self._model_of[answer.worker] = model
        if model and proposal.device is not None and model != self._models[proposal.device]:
            self._send(proposal, losses)  # the worker's model was not known before
        else:
            self._finish(proposal, answer.outcome)

    def _finish(self, proposal: Proposal, outcome: Outcome) -> None:
        searched = not (proposal.confirm or proposal.repeat)
        if searched and outcome.binary and outcome.duplicate_of is None:
            twin = self._twins.find(outcome.binary)
            if twin is not None:  # another worker measured it; one outcome stands for the code
                spent_s = outcome.stage_s
                outcome = msgspec.structs.replace(twin[1], duplicate_of=twin[0], stage_s=spent_s)
            elif speaks_for_its_code(outcome):
                self._twins.remember(proposal.number, outcome)
        self._done.append((proposal.number, outcome))

    def _may_take(self, proposal: Proposal) -> Sequence[str] | None:
        """The workers that may take it; None: all. Champions of one model meet on one worker: the
        first that has this model, or else the first whose model is not known yet."""
        if proposal.device is None:
            return self._usable() if self._refused else None
        model = self._models[proposal.device]
        fit = [each for each in self._usable() if self._model_of.get(each, model) == model]
        return sorted(fit, key=lambda each: each not in self._model_of)[:1]

    def _usable(self) -> list[str]:
        """Addresses of the workers that are there and did not refuse."""
        return [address for address in workers_of(self._client) if address not in self._refused]

    def _check_workers(self) -> None:
        """Sends trials elsewhere if all workers that may take them have gone, and sends trials that
        could not be sent before.

        Once a worker has refused, each trial names the workers that may take it, as a champion
        does, and Dask would wait for these for ever. Raises EnvironmentProblem if there has been no
        worker for some trial for a while.
        """
        now = time.monotonic()
        if now - self._looked_s < 1.0 or self._client.status != "running":
            return
        self._looked_s = now
        if any(sent.workers is not None for sent in self._running.values()):
            usable = set(self._usable())
            for key, sent in list(self._running.items()):
                if sent.workers is not None and not usable.intersection(sent.workers):
                    del self._running[key]
                    self._client.cancel([sent.future], force=True)
                    self._stranded.append((sent.proposal, sent.losses))
        stranded, self._stranded = self._stranded, []
        for proposal, losses in stranded:
            self._send(proposal, losses)
        if not self._stranded:
            self._placed_s = now
        elif now - self._placed_s > _WORKERS_GONE_S:
            reasons = [*self._refused.values(), "those of a champion's GPU model have gone"]
            raise EnvironmentProblem(
                f"no worker of the cluster can work for this run: {reasons[0]}"
            )

    def _check_scheduler(self) -> None:
        now = time.monotonic()
        if self._client.status == "running":
            self._reached_s = now
        elif now - self._reached_s > _SCHEDULER_GONE_S or self._client.status == "closed":
            raise EnvironmentProblem(
                "the cluster's scheduler is gone; start it again, then resume the run"
            )


def ask_each(
    client: Any, task: Task, message: ToClusterWorker, workers: Sequence[str] | None = None
) -> dict[str, FromClusterWorker]:
    """Sends `message` to `workers`, or to all present workers if none are named. Returns the
    answers by address.

    A worker that dies meanwhile is left out. Raises EnvironmentProblem if a worker cannot run the
    task, or when none answers.
    """
    addresses = workers_of(client) if workers is None else workers
    futures = {
        address: client.submit(task, encode(message), workers=[address], pure=False)
        for address in addresses
    }
    answers: dict[str, FromClusterWorker] = {}
    deadline = time.monotonic() + _ANSWER_S
    for address, future in futures.items():
        error: BaseException | None = None
        while not future.done() and time.monotonic() < deadline and address in workers_of(client):
            with contextlib.suppress(TimeoutError, CancelledError):
                error = future.exception(timeout=1.0)
        if future.status == "error":
            error = error or future.exception()
            if type(error).__name__ != "KilledWorker":
                raise _cannot_run(error)
        elif future.status == "finished":
            with contextlib.suppress(TimeoutError, CancelledError):
                answers[address] = _read(future.result(timeout=_FETCH_S))
    client.cancel(list(futures.values()), force=True)
    if not answers:
        raise EnvironmentProblem("the cluster's workers have gone; start some, then try again")
    return answers


def _read(answer: object) -> FromClusterWorker:
    try:
        if isinstance(answer, bytes):
            return decode(FROM_CLUSTER_WORKER, answer)
        raise UnreadableMessage(f"a {type(answer).__name__}")
    except UnreadableMessage as error:
        raise _cannot_read(error) from error


def _cannot_read(why: object) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"a worker of the cluster sent a message that cannot be read: {why}; "
        "fix: install the same evotune there"
    )


def _cannot_run(error: BaseException | None) -> EnvironmentProblem:
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return EnvironmentProblem(
        f"a worker of the cluster cannot run evotune ({words}); fix: install the same evotune there"
    )


def workers_of(client: Any) -> Sequence[str]:
    return list(client.scheduler_info(n_workers=-1)["workers"])
