"""A run on a recorded space, and its executor: every outcome is looked up, none is measured."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence

from evotune.runs.setup import RecordedSetup
from evotune.trial import Configuration, Outcome, Trial
from evotune.workers.executor import Executor, Proposal


class RecordedRun:
    """The kind of run that needs no device."""

    confirms = False

    def __init__(self, setup: RecordedSetup) -> None:
        self.setup = setup

    def open_executor(self, first: Sequence[Configuration] = ()) -> Executor:
        return InlineExecutor(self.setup.recording.outcome, self.setup.delay_ms / 1000)

    def proposal(self, number: int, configuration: Configuration) -> Proposal:
        return Proposal(number, configuration)

    def expect_finalists(self, executor: Executor) -> None:
        """None will be confirmed."""

    def confirmed(
        self, executor: Executor, *, stop: Callable[[], bool], no_time: Callable[[], bool]
    ) -> Iterator[tuple[Trial, Outcome]]:
        """None: a recording cannot be measured again."""
        return iter(())


class InlineExecutor:
    """Trials take virtual time: `duration_s` each, on `devices` devices at once. `poll` returns the
    trial that finishes next. `delay_s` is a real pause per trial, for watching a run or stopping it
    half-way.
    """

    def __init__(
        self,
        outcome_of: Callable[[Configuration], Outcome],
        delay_s: float = 0.0,
        *,
        devices: int = 1,
        duration_s: Callable[[Proposal], float] = lambda proposal: 1.0,
    ) -> None:
        self._outcome_of = outcome_of
        self._delay_s = delay_s
        self._duration_s = duration_s
        self._free_s = [0.0] * devices  # when each device is free again
        self._running: list[tuple[float, int, Proposal]] = []
        self.now_s = 0.0
        """Virtual time: when the last trial that was polled finished."""

    @property
    def step(self) -> str:
        """Not known: recorded trials take no time."""
        return ""

    def submit(self, proposal: Proposal) -> None:
        finish_s = max(self.now_s, self._free_s[0]) + self._duration_s(proposal)
        heapq.heapreplace(self._free_s, finish_s)
        heapq.heappush(self._running, (finish_s, proposal.number, proposal))

    def set_contender(self, fitness: float) -> None:
        """Does nothing: recorded outcomes take no samples."""

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        if not self._running:
            return []
        if self._delay_s:
            time.sleep(self._delay_s)
        self.now_s, number, proposal = heapq.heappop(self._running)
        return [(number, self._outcome_of(proposal.configuration))]

    def drop(self) -> None:
        self._running.clear()

    def close(self) -> None:
        self._running.clear()
