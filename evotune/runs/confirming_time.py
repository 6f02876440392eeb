"""The time that confirming may take: as long as searching took, and at least 30 s a champion."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

LEAST_EACH_S = 30.0
BRIEF_S = 8.0
"""For the checks of a later champion that surely loses by the search's figures."""
_CHECKS_SHARE = 0.6
"""Of a champion's time for its first process up to the timing. The rest is for the timing there and
in further processes."""


class ConfirmingTime:
    """Counts from when it is made. Workers of this machine can read its points in time, which are
    those of the system's monotonic clock."""

    def __init__(
        self, limit_s: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._end_s = clock() + limit_s

    @classmethod
    def after(cls, searched_s: float, champions: int) -> ConfirmingTime:
        """For so many champions of a search that took `searched_s`, over all sessions."""
        return cls(max(searched_s, LEAST_EACH_S * champions))

    @property
    def is_endless(self) -> bool:
        return math.isinf(self._end_s)

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._end_s

    def checks_until_s(self, champions: int) -> float:
        """When the next one's checks are cut short, if so many `champions` share the time left."""
        now_s = self._clock()
        return now_s + _CHECKS_SHARE * (self._end_s - now_s) / champions

    def brief_checks_until_s(self) -> float:
        """When the next one's checks are cut short, if it surely loses."""
        return min(self._end_s, self._clock() + BRIEF_S)
