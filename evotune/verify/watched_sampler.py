"""Puts watched runs, and questions whether calls keep results, among a candidate's timed runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evotune.backends.base.session import Sampler
from evotune.verify.watch import Watch, Watched

_RUNS_OF_A_ROUND = 3  # of the candidate: the first is untimed, two are timed


class WatchedSampler:
    """A candidate's timed sampler with one watched run in each round, before a random timed run.
    `watched` gets evidence that must be read before more is kept. With `asking` the first rounds
    and half of the later ones also ask whether calls keep results."""

    def __init__(
        self,
        timed: Sampler,
        watch: Watch,
        watched: Callable[[Sequence[Watched]], None],
        *,
        asking: bool = False,
    ) -> None:
        self._asking = asking
        self._timed = timed
        self._watch = watch
        self._watched = watched
        self._wait = 0

    def run(self) -> None:
        """The untimed run at the beginning of a round."""
        self._wait = self._watch.draw_turn(_RUNS_OF_A_ROUND)
        if self._asking:
            self._watch.ask()
        self._look()
        self._timed.run()

    def time_us(self) -> float:
        self._look()
        time_us = self._timed.time_us()
        self._watch.took(time_us)
        return time_us

    def _look(self) -> None:
        if self._wait == 0:
            self._watch.run()
            if self._watch.is_full:
                self._watched(self._watch.take())
        self._wait -= 1
