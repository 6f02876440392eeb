"""The phases of a run, and how long each one took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

OPENING = "opening"
"""The space is read, the device is looked for, workers start."""
BASELINES = "baselines"
SEARCHING = "searching"
PLANNING = "planning champions"
CHECKING = "checking champions"
TIMING_CHAMPIONS = "timing champions"
CONFIRMING_CHAMPIONS = "confirming champions"
"""Champions are checked and timed in the same process, one after the other."""
CLOSING = "closing"


class PhaseTimes:
    """Seconds by phase. Phases follow each other without gaps; one may come again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._phase = OPENING
        self._since_s = clock()

    def enter(self, phase: str) -> None:
        """Ends the present phase."""
        now_s = self._clock()
        spent_s = now_s - self._since_s
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + spent_s
        self._phase, self._since_s = phase, now_s

    def added_to(self, before: Mapping[str, float]) -> dict[str, float]:
        """The seconds up to now, with those of earlier sessions."""
        self.enter(self._phase)
        seconds = dict(before)
        for phase, spent_s in self._seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent_s
        return seconds
