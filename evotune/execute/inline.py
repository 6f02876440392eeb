"""The executor of a recorded space: every outcome is looked up, none is measured."""

from __future__ import annotations

import time
from collections.abc import Callable

from evotune.execute.protocol import Proposal
from evotune.trial import Configuration, Outcome


class InlineExecutor:
    """`delay_s` is a pause per trial, for watching a run or stopping it half-way."""

    def __init__(
        self, outcome_of: Callable[[Configuration], Outcome], delay_s: float = 0.0
    ) -> None:
        self._outcome_of = outcome_of
        self._delay_s = delay_s
        self._queue: list[Proposal] = []

    def submit(self, proposal: Proposal) -> None:
        self._queue.append(proposal)

    def set_contender(self, fitness: float) -> None:
        """Recorded outcomes cost no samples."""

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        if not self._queue:
            return []
        if self._delay_s:
            time.sleep(self._delay_s)
        proposal = self._queue.pop(0)
        return [(proposal.number, self._outcome_of(proposal.configuration))]

    def drop(self) -> None:
        self._queue.clear()

    def close(self) -> None:
        self._queue.clear()
