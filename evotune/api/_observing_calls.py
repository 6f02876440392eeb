"""An observer of a run that calls a user's functions."""

from __future__ import annotations

import time
from collections.abc import Callable

from evotune.runs.observer import Observer, Progress, RunInfo, SilentObserver
from evotune.trial import Trial

_STEP_EVERY_S = 10.0


class Calls(SilentObserver):
    """Calls `on_trial` with each trial that was not stored before this part of the run, and
    `on_note` with a line for each stage and every ten seconds of a confirmation."""

    def __init__(
        self,
        on_trial: Callable[[Trial], object] | None,
        on_note: Callable[[str], object] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_trial = on_trial
        self._on_note = on_note
        self._clock = clock
        self._noted_s = clock()
        self._known = 0

    def started(self, info: RunInfo) -> None:
        self._known = info.already_done

    def phase(self, text: str) -> None:
        self._noted_s = self._clock()
        if self._on_note is not None:
            self._on_note(text)

    def step(self, text: str) -> None:
        if self._clock() - self._noted_s >= _STEP_EVERY_S:
            self.phase(text)

    def told(self, trial: Trial, progress: Progress) -> None:
        if self._on_trial is not None and progress.told > self._known:
            self._on_trial(trial)


def watching(
    on_trial: Callable[[Trial], object] | None, on_note: Callable[[str], object] | None
) -> Observer:
    """An observer that calls them; a silent one when both are None."""
    silent = on_trial is None and on_note is None
    return SilentObserver() if silent else Calls(on_trial, on_note)
