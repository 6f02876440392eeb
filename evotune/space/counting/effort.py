"""Limits on the work of counting: in steps where a search depends on it, in seconds elsewhere.

A search must not depend on how fast or how busy a machine is. So counted steps limit the work for a
search's questions. Seconds limit only the work for a text that is shown to a user.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

SHOWN_S = 10.0
"""Time to find how much each constraint removes, or which constraints leave a space empty."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits on the work of solving a space.

    A diagram of the space is made in the order of its parameters. If that exceeds a limit, a better
    order is tried. If that does too, each layer keeps only a random part of its states.

    - `in_order_rows`, `reordered_rows`: rows of a diagram in the first and in the better order. A
      row is a state with one value of the next parameter.
    - `thinned_layer_rows`: rows of one layer that keeps a part of its states.
    - `thinned_tries`: how many diagrams with such layers are tried.
    - `steps`: numbers read or written, in all attempts on all parts of the space together. A row
      costs a step for each operation in the conditions of its layer.
    """

    in_order_rows: int = 1_000_000
    reordered_rows: int = 4_000_000
    thinned_layer_rows: int = 400_000
    thinned_tries: int = 4
    steps: int = 4_000_000_000


FULL = Effort()
QUICK = Effort(300_000, 300_000, 100_000, 1, 500_000_000)  # for each constraint's own count


class OutOfTime(Exception):
    """A deadline has passed."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time, by a clock that tests may set."""

    end_s: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        return cls(clock() + seconds, clock)

    def check(self) -> None:
        """OutOfTime when the deadline has passed."""
        if self.clock() > self.end_s:
            raise OutOfTime

    def share(self, parts: int) -> Deadline:
        """The deadline of the first part, if the time left is divided into `parts` equal ones."""
        now_s = self.clock()
        return Deadline(now_s + max(0.0, self.end_s - now_s) / parts, self.clock)


NEVER = Deadline(float("inf"), lambda: 0.0)


class Patience:
    """Steps that a walk may take from one configuration to the next; OutOfSteps beyond."""

    MOST = 200_000

    def __init__(self, most: int = MOST) -> None:
        self._most = self._left = most

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise OutOfSteps

    def renew(self) -> None:
        self._left = self._most


class OutOfSteps(Exception):
    """A walk found no further configuration in the steps that it may take."""
