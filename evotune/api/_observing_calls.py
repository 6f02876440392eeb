"""An observer of a run that calls a user's functions."""

from __future__ import annotations

from collections.abc import Callable

from evotune.engine.observer import Observer, Progress, RunInfo, SilentObserver
from evotune.trial import Trial


class _Calls(SilentObserver):
    """Calls `on_trial` with each trial that was not stored before this part of the run, and
    `on_note` with a line for each stage."""

    def __init__(
        self,
        on_trial: Callable[[Trial], object] | None,
        on_note: Callable[[str], object] | None,
    ) -> None:
        self._on_trial = on_trial
        self._on_note = on_note
        self._known = 0

    def started(self, info: RunInfo) -> None:
        self._known = info.already_done

    def phase(self, text: str) -> None:
        if self._on_note is not None:
            self._on_note(text)

    def told(self, trial: Trial, progress: Progress) -> None:
        if self._on_trial is not None and progress.told > self._known:
            self._on_trial(trial)


def watching(
    on_trial: Callable[[Trial], object] | None, on_note: Callable[[str], object] | None
) -> Observer:
    """An observer that calls them; a silent one when both are None."""
    silent = on_trial is None and on_note is None
    return SilentObserver() if silent else _Calls(on_trial, on_note)
