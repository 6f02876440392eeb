"""The stages of a trial in a worker: how long each takes, and which one is at work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

_WORDS = {
    "load": "loading the kernels",
    "start": "checking the first launches",
    "verify": "checking cases",
    "random_tests": "random cases",
    "served_sizes": "launching at served sizes",
    "perturbation": "checking disturbed launches",
    "sanitizer": "waiting for the sanitizer",
    "measure": "timing cases",
}


class Stages:
    """`tell` gets each step in words. `seconds`: by stage."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        self._tell(_WORDS[stage])
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started

    def at(self, what: str, number: int, count: int) -> None:
        """The stage is at part `number` of so many."""
        self._tell(f"{what} {number} of {count}")
