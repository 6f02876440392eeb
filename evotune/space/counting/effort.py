"""How much work counting may be: in steps where a search depends on it, in seconds elsewhere.

A search must not depend on how fast a machine is, or on how busy: what it asks a space for is
bounded by counted steps. Seconds bound what is only shown to somebody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

SHOWN_S = 10.0
"""For what each constraint removes, and for which constraints leave a space empty."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much solving a space may take.

    First in the order of the space, then in a better order, then with a random part of the
    states of a layer, `thinned_tries` times. A row is a state x value, and takes as many steps as
    its layer's conditions are long: a step is about one number read or written. The parts of the
    space share the steps.
    """

    in_order_rows: int = 1_000_000
    reordered_rows: int = 4_000_000
    thinned_layer_rows: int = 400_000
    thinned_tries: int = 4
    steps: int = 4_000_000_000


FULL = Effort()
QUICK = Effort(300_000, 300_000, 100_000, 1, 500_000_000)  # for questions asked once a constraint


class OutOfTime(Exception):
    """A deadline has passed."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of some seconds, by a clock that tests may set."""

    end_s: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        return cls(clock() + seconds, clock)

    def check(self) -> None:
        """OutOfTime when it has passed."""
        if self.clock() > self.end_s:
            raise OutOfTime

    def share(self, parts: int) -> Deadline:
        """The end of the first of so many equal parts of the time that is left."""
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
    """No further configuration was found in as many steps as there may be."""
