"""The events of a run, for a terminal or a caller that watches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evotune.trial import Configuration, Outcome, Trial

OTHER_WORK = "times may be disturbed"
"""The beginning of the phase that names other work on the machine: a remark for the whole run."""

CONFIRMING = "confirming"
"""The beginning of the phase in which champions are confirmed."""

WARNING = "warning: "
"""The beginning of a phase that warns of the user's problem."""


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
    """How many are to be confirmed after the search."""
    elapsed_s: float = 0.0
    """Time at work in earlier parts of the run, as `RunStore.elapsed_s` has it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run after an outcome was told."""

    told: int
    searched_s: float
    """Over all parts of the run, as `RunStore.searched_s` has it."""
    generation: int
    best: Trial | None
    elites: Sequence[tuple[float, Configuration]] = ()


class Observer(Protocol):
    """Called from the run's own thread; must be quick and must not raise."""

    def started(self, info: RunInfo) -> None:
        """The first event: the run has its folder and its lock."""

    def phase(self, text: str) -> None:
        """A new stage: timing the baselines, searching, confirming champions."""

    def told(self, trial: Trial, progress: Progress) -> None: ...

    def step(self, text: str) -> None:
        """A step of a champion's confirmation, in words. Every half second it is told again."""

    def confirmed(self, trial: Trial, outcome: Outcome) -> None: ...

    def finished(self, reason: str, elapsed_s: float) -> None:
        """The last event.

        - `reason`: as `SearchLoop.run` has it.
        - `elapsed_s`: time at work over all parts of the run, as in reports.
        """


class SilentObserver:
    """Watches nothing."""

    def phase(self, text: str) -> None: ...

    def started(self, info: RunInfo) -> None: ...

    def told(self, trial: Trial, progress: Progress) -> None: ...

    def step(self, text: str) -> None: ...

    def confirmed(self, trial: Trial, outcome: Outcome) -> None: ...

    def finished(self, reason: str, elapsed_s: float) -> None: ...
