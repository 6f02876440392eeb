"""The stages of a trial in a worker: how long each takes, and which one is at work."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from evotune.verify.aligned_launches import WORDS

_WORDS = {
    "load": "loading the kernels",
    "start": "checking the first launches",
    "verify": "checking cases",
    "alignment": WORDS,
    "random_tests": "random cases",
    "served_sizes": "launching at served sizes",
    "perturbation": "checking disturbed launches",
    "sanitizer": "waiting for the sanitizer",
    "measure": "timing cases",
}

_LEAST_S = 2.0  # of a stage, however late it is


class Stages:
    """`tell` gets each step in words. `seconds`: by stage. `cut_short`: a stage had no time for all
    that belongs to it, since the clock has passed `until_s`."""

    def __init__(self, tell: Callable[[str], None], until_s: float = math.inf) -> None:
        self._tell = tell
        self._until_s = until_s
        self.seconds: dict[str, float] = {}
        self.cut_short = False
        self.step = ""
        """The present step in words."""

    def left_s(self) -> float:
        """The time that the present stage may take, a little in any case."""
        return max(_LEAST_S, self._until_s - time.monotonic())

    def is_late(self) -> bool:
        """Whether the time is over: then what comes next is left out."""
        late = time.monotonic() >= self._until_s
        self.cut_short |= late
        return late

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        self._begin(_WORDS[stage])
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started

    def at(self, what: str, number: int, count: int) -> None:
        """The stage is at part `number` of so many."""
        self._begin(f"{what} {number} of {count}")

    def _begin(self, step: str) -> None:
        self.step = step
        self._tell(step)
