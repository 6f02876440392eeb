"""Watches runs: a run in this process notifies an `Observer` of its progress, and a `Follower`
notifies it of the progress of a run in another process."""

from __future__ import annotations

import time
from collections.abc import Callable

from evotune.report.data import RunData
from evotune.runs.folder import RunFolder
from evotune.runs.observer import (
    CONFIRMING,
    OTHER_WORK,
    WARNING,
    Observer,
    Progress,
    RunInfo,
    SilentObserver,
)
from evotune.store import RunStore
from evotune.trial import Trial

__all__ = [
    "CONFIRMING",
    "OTHER_WORK",
    "WARNING",
    "Calls",
    "Follower",
    "Observer",
    "Progress",
    "RunInfo",
    "SilentObserver",
    "watching",
]

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
    """An observer that calls the two functions; a silent one if both are None."""
    silent = on_trial is None and on_note is None
    return SilentObserver() if silent else Calls(on_trial, on_note)


class Follower:
    """Reads a run's store and notifies an observer, as the run itself would. Outcomes come in the
    order in which they were stored, whereas the run notifies in the order of the proposals. So the
    reported first trial of a generation may be a few trials off.
    """

    def __init__(self, run: RunFolder, observer: Observer) -> None:
        self._run = run
        self._observer = observer
        self._told: set[int] = set()
        self._first_missing = 0
        self._confirmed: set[int] = set()
        self._best: list[tuple[float, Trial]] = []
        self._population = 1
        self._elites = 1
        self.elapsed_s = 0.0
        """The run's time at work, as the store had it at the last look."""

    def start(self) -> None:
        data = RunData.load(self._run, 1)
        settings = data.facts.settings
        self._population, self._elites = settings.population, settings.elites
        self._observer.started(
            RunInfo(
                id=data.id,
                path=data.path,
                space=data.space,
                device=data.facts.device.name,
                strategy=settings.strategy,
                seed=settings.seed,
                population=self._population,
                trials=settings.trials,
                minutes=settings.minutes,
                already_done=data.totals.trials,
                elapsed_s=data.totals.elapsed_s,
            )
        )

    def look(self) -> str:
        """Tells the observer every new outcome and confirmation; returns the run's stored state."""
        with RunStore.open_for_reading(self._run.store, checked=True) as store:
            new = [t for t in store.trials(self._first_missing) if t.number not in self._told]
            self.elapsed_s = store.elapsed_s()
            searched_s = store.searched_s()
            confirmations = store.confirmations()
            state = str(store.meta("state", ""))
        for trial in new:
            self._tell(trial, searched_s)
        while self._first_missing in self._told:
            self._told.remove(self._first_missing)
            self._first_missing += 1
        for number, outcome in confirmations.items():
            trials = [trial for _, trial in self._best if trial.number == number]
            if number not in self._confirmed and trials:
                self._observer.confirmed(trials[0], outcome)
            self._confirmed.add(number)
        self._observer.phase(CONFIRMING if confirmations else "searching")
        return state

    def _tell(self, trial: Trial, searched_s: float) -> None:
        self._told.add(trial.number)
        fitness = trial.outcome.fitness
        if fitness is not None and trial.outcome.duplicate_of is None:
            self._best.append((fitness, trial))
            self._best.sort(key=lambda item: (-item[0], item[1].number))
            del self._best[max(32, self._elites) :]
        told = self._first_missing + len(self._told)
        self._observer.told(
            trial,
            Progress(
                told=told,
                searched_s=searched_s,
                generation=told // self._population,
                best=self._best[0][1] if self._best else None,
                elites=[(f, t.configuration) for f, t in self._best[: self._elites]],
            ),
        )
