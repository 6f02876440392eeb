"""The events of a run, for a terminal or a caller that watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from evotune.trial import Configuration, Outcome, Trial

OTHER_WORK = "times may be disturbed"
"""The first words of the phase that names other work on the machine; a remark about the whole
run."""

CONFIRMING = "confirming"
"""The first words of the phase in which champions are confirmed."""

WARNING = "warning: "
"""The first words of a phase that warns about the user's problem."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Fixed facts of a run, known when it starts or resumes."""

    id: str
    path: str
    space: str
    device: str
    strategy: str
    seed: int
    population: int
    trials: int
    minutes: float | None
    already_done: int
    champions: int = 0
    """How many champions are confirmed after the search."""
    elapsed_s: float = 0.0
    """The time at work in earlier parts of the run; see `RunStore.elapsed_s`."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run after an outcome."""

    told: int
    searched_s: float
    """The time of searching over all parts of the run; see `RunStore.searched_s`."""
    generation: int
    best: Trial | None
    elites: Sequence[tuple[float, Configuration]] = ()


class Observer(Protocol):
    """Watches a run. Its methods are called in the run's own thread; they must be quick and must
    not raise."""

    def started(self, info: RunInfo) -> None:
        """Called first, once the run has its folder and its lock."""

    def phase(self, text: str) -> None:
        """Called at the start of a stage: timing the baselines, searching, confirming champions."""

    def told(self, trial: Trial, progress: Progress) -> None: ...

    def step(self, text: str) -> None:
        """Called with the step of a champion's confirmation, in words, and again every half
        second."""

    def confirmed(self, trial: Trial, outcome: Outcome) -> None: ...

    def finished(self, reason: str, elapsed_s: float) -> None:
        """Called last.

        - `reason`: why the run ended; see `SearchLoop.run`.
        - `elapsed_s`: the time at work over all parts of the run, as in reports.
        """


class SilentObserver:
    """An observer that does nothing."""

    def phase(self, text: str) -> None: ...

    def started(self, info: RunInfo) -> None: ...

    def told(self, trial: Trial, progress: Progress) -> None: ...

    def step(self, text: str) -> None: ...

    def confirmed(self, trial: Trial, outcome: Outcome) -> None: ...

    def finished(self, reason: str, elapsed_s: float) -> None: ...


# The phases of a run, and how long each one took.
OPENING = "opening"
"""The phase in which the space is read, the device is found and workers start."""
BASELINES = "baselines"
SEARCHING = "searching"
PLANNING = "planning champions"
CHECKING = "checking champions"
TIMING_CHAMPIONS = "timing champions"
CONFIRMING_CHAMPIONS = "confirming champions"
"""The phase in which champions are checked and timed, one after the other, each in one process."""
CLOSING = "closing"


class PhaseTimes:
    """Seconds by phase. Phases follow each other without gaps; a phase may occur several times."""

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
