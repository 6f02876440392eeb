"""Families without a search and a clock: each run has made-up speedups, and can be killed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evotune.errors import SpaceError
from evotune.portfolios import family_race
from evotune.portfolios.family_file import Family, FamilyBudget, read_family
from evotune.portfolios.family_race import FamilyRequest, resume_family, start_family
from evotune.run_options import RunOptions
from evotune.runs.folder import RunFolder, create_folder, list_families
from evotune.runs.observer import Observer, SilentObserver
from evotune.runs.starting import RunRequest, RunResult
from evotune.space.reading.case_file import given_cases
from evotune.store import RunStore
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial, Value

Speedup = Callable[[str, int], float]
"""Of a trial of a space, by the trial's number; 0 where it is wrong."""


class Killed(BaseException):
    """Ends the process's work at once, as a signal would."""


@dataclass
class PretendedRuns:
    """Takes the place of `start_run` and `resume_run`. It is killed after so many events: trials,
    confirmations, and ends of runs."""

    speedup: Speedup
    killed_after: int = 10**9
    trial_s: float = 1.0
    spread: Mapping[str, float] = field(default_factory=dict)
    """Half the width of the intervals of a space's trials."""
    unconfirmed: Sequence[str] = ()
    refused: Sequence[str] = ()
    """Spaces without a configuration for the cases."""
    requests: list[RunRequest] = field(default_factory=list)
    events: int = 0

    def start(self, request: RunRequest, observer: Observer) -> RunResult:
        assert request.space is not None
        if request.space in self.refused:
            raise SpaceError("no valid configuration")
        self.requests.append(request)
        options = RunOptions(trials=1000).replaced(request.options)
        run = create_folder(request.runs_dir, request.space)
        facts = {"settings": options.to_json(), "state": "running", "space": request.space}
        with RunStore.create(run.store, {**facts, **request.facts}) as store:
            return self._work(run, store, options)

    def resume(
        self,
        run: RunFolder,
        observer: Observer,
        *,
        trials: int | None,
        minutes: float | None,
        champions: int | None,
    ) -> RunResult:
        with RunStore.open_for_writing(run.store) as store:
            options = RunOptions.from_json(store.meta("settings"))
            given = {"trials": trials, "minutes": minutes, "champions": champions}
            options = options.replaced(given)
            assert trials is None or trials >= store.count()
            store.set_facts({"settings": options.to_json(), "state": "running"})
            return self._work(run, store, options)

    def _work(self, run: RunFolder, store: RunStore, options: RunOptions) -> RunResult:
        space = str(store.meta("space"))
        share = 0.7 if options.champions else 1.0
        limit_s = math.inf if options.seconds is None else share * options.seconds
        while store.count() < options.trials and store.elapsed_s() + self.trial_s <= limit_s:
            self._happens()
            number = store.count()
            store.append(self._trial(space, number), (number + 1) * self.trial_s)
        if options.champions and space not in self.unconfirmed and not store.confirmations():
            self._happens()
            best = store.best(before=10**9)
            if best is not None:
                store.confirm(best.number, best.outcome, store.elapsed_s())
        self._happens()
        store.set_facts({"state": "finished:trials"})
        return RunResult(run, "trials", store.count_ok())

    def _trial(self, space: str, number: int) -> Trial:
        speedup = self.speedup(space, number)
        outcome = Outcome(OutcomeKind.WRONG_RESULT, reason="off")
        if speedup:
            found = math.log(speedup)
            spread = self.spread.get(space, 0.0)
            outcome = Outcome(OutcomeKind.OK, found, found - spread, found + spread)
        return Trial(number, Configuration({"NUMBER": number}), outcome)

    def _happens(self) -> None:
        if self.events == self.killed_after:
            self.events = 0  # of the process that goes on
            raise Killed
        self.events += 1


@contextlib.contextmanager
def pretending(runs: PretendedRuns) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family_race, "start_run", runs.start)
        patch.setattr(family_race, "resume_run", runs.resume)
        yield


@contextlib.contextmanager
def silent() -> Iterator[Observer]:
    yield SilentObserver()


def started(
    folder: Path,
    runs: PretendedRuns,
    cases: Sequence[dict[str, Value]],
    *,
    trials: int | None = None,
    minutes: float | None = None,
    say: Callable[[str], None] = lambda text: None,
    **given: object,
) -> Family:
    """A family's run to its end, or until it is killed: then it is resumed, as often as needed."""
    request = FamilyRequest(
        given_cases(cases),
        device="cpu",
        runs_dir=folder,
        budget=FamilyBudget(trials, minutes),
        **given,  # type: ignore[arg-type]
    )
    with pretending(runs):
        try:
            start_family(request, silent, say)
        except Killed:
            resumed(folder, runs)
    (found,) = list_families(folder)
    return read_family(found)


def resumed(folder: Path, runs: PretendedRuns, **given: int | float | None) -> Family:
    (found,) = list_families(folder)
    for _ in range(1000):
        with pretending(runs), contextlib.suppress(Killed):
            resume_family(found, silent, lambda text: None, **given)  # type: ignore[arg-type]
            break
    return read_family(found)
