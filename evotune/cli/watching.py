"""`status --watch`: follows a running run from any terminal, by reading its store alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from evotune.cli.progress import progress_observer
from evotune.cli.terminal import Terminal
from evotune.report.data import RunData
from evotune.run_options import RunOptions
from evotune.runs.observer import CONFIRMING, Observer, Progress, RunInfo
from evotune.runs.stop_signal import interruptible
from evotune.store import RunStore
from evotune.trial import Trial

if TYPE_CHECKING:
    from evotune.runs.folder import RunFolder

_EVERY_S = 0.5


class Follower:
    """Reads a run's store and tells an observer about it, as the run itself would.

    It tells outcomes in the order in which they were stored, the run in the order of the proposals.
    So the trial at which a generation begins may be a few trials off.
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
        settings = data.facts.settings or RunOptions()
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


def watch(terminal: Terminal, run: RunFolder) -> None:
    """Follows the run until no process works on it any more, or until Ctrl-C."""
    from evotune.report import wording

    with interruptible(), progress_observer(terminal) as observer:
        follower = Follower(run, observer)
        follower.start()
        try:
            while True:
                working = run.holder() is not None
                state = follower.look()
                if not working:
                    break
                time.sleep(_EVERY_S)
        except KeyboardInterrupt:
            return
        stored = "killed" if state == "running" else state
        observer.finished(wording.state_text(stored), follower.elapsed_s)
