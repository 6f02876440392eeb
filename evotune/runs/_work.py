"""One part of a run, from its start or its resumption to its end: search, then confirmation.

Needs the run's lock and its open store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from evotune.errors import StoreError
from evotune.run_options import RunOptions
from evotune.runs.folder import RunFolder
from evotune.runs.observer import CONFIRMING, Observer, RunInfo
from evotune.runs.search_loop import SearchLoop
from evotune.runs.setup import Setup
from evotune.runs.stop_signal import StopSignal
from evotune.search.catalog import create_strategy, same_strategy
from evotune.store import AROUND_SEARCH, RunStore
from evotune.trial import Configuration, Json, Outcome, Trial
from evotune.workers.executor import Executor, Proposal

if TYPE_CHECKING:
    from evotune.search.own import StrategyMaker

_SEARCH_SHARE = 0.7
"""Share of a run's minutes that the search gets. The rest is for confirming champions, and the
first of them is confirmed however long it takes."""


class KindOfRun(Protocol):
    """How the trials of a run get their outcomes: `KernelRun` measures, `RecordedRun` looks up."""

    @property
    def setup(self) -> Setup: ...

    @property
    def confirms(self) -> bool:
        """Whether champions are to be confirmed after the search."""

    def open_executor(self) -> Executor: ...

    def proposal(self, number: int, configuration: Configuration) -> Proposal: ...

    def confirmed(
        self, executor: Executor, *, stop: Callable[[], bool], no_time: Callable[[], bool]
    ) -> Iterator[tuple[Trial, Outcome]]:
        """Each finalist with the outcome of its confirmation. `no_time`: confirm no further one
        once one has passed."""


class RunWork:
    """Searches, then confirms; leaves the run's state in the store whatever happens."""

    def __init__(
        self,
        run: RunFolder,
        store: RunStore,
        kind: KindOfRun,
        *,
        options: RunOptions,
        observer: Observer,
        strategy: str | StrategyMaker | None = None,
        patient: bool = False,
    ) -> None:
        """`strategy`: of a user's own, which the options hold by name alone. `patient`: champions
        are confirmed even when the run's minutes are over."""
        self.run = run
        self.store = store
        self._kind = kind
        self._options = options
        self._observer = observer
        self._strategy = strategy
        self._patient = patient
        self._signals = StopSignal()
        self._began_s = time.monotonic() - store.elapsed_s()  # as if the run had one part

    def run_to_end(self) -> str:
        """Why it ended, as `SearchLoop.run` has it."""
        with self._signals:
            executor: Executor | None = None
            reason = "interrupted"
            self._observer.started(self._info())
            try:
                executor = self._kind.open_executor()
                ended = self._search(executor)
                if ended != "interrupted" and self._kind.confirms and self.store.count_ok():
                    executor.drop()
                    self._confirm(executor)
                if not self._signals.requested:
                    reason = ended
            except KeyboardInterrupt:
                reason = "interrupted"
            except StoreError:  # nothing more is written into a damaged store
                reason = ""
                raise
            finally:
                if executor is not None:
                    executor.close()
                finished = reason != "interrupted"
                if reason:
                    state = f"finished:{reason}" if finished else reason
                    self.store.set_facts({"state": state, **self._time_around_search()})
        self._observer.finished(reason, self.store.elapsed_s())
        return reason

    @property
    def _elapsed_s(self) -> float:
        """Time at work over all parts of the run."""
        return time.monotonic() - self._began_s

    def _time_around_search(self) -> dict[str, Json]:
        """The fact that `RunStore.elapsed_s` needs, as of now."""
        return {AROUND_SEARCH: self._elapsed_s - self.store.searched_s()}

    def _search(self, executor: Executor) -> str:
        options = self._options
        seconds = options.seconds
        if seconds is not None and self._kind.confirms:
            seconds *= _SEARCH_SHARE
        strategy = same_strategy(options.strategy, self._strategy)
        loop = SearchLoop(
            self.store,
            create_strategy(strategy, self._kind.setup.space, options),
            executor,
            self._kind.proposal,
            options=options,
            seconds=seconds,
            searched_s=self.store.searched_s(),
            stop=lambda: self._signals.requested,
            observer=self._observer,
            quarantined=self.run.quarantine,
        )
        self.store.set_facts(self._time_around_search())
        self._observer.phase("searching")
        self._signals.tidy = True
        return loop.run()

    def _confirm(self, executor: Executor) -> None:
        self._observer.phase(f"{CONFIRMING} the best in fresh processes")
        for trial, outcome in self._kind.confirmed(
            executor, stop=lambda: self._signals.requested, no_time=self._is_over_time
        ):
            self.store.confirm(trial.number, outcome, self._elapsed_s)
            self.store.set_facts(self._time_around_search())
            self._observer.confirmed(trial, outcome)

    def _is_over_time(self) -> bool:
        seconds = self._options.seconds
        return seconds is not None and self._elapsed_s > seconds and not self._patient

    def _info(self) -> RunInfo:
        setup, options = self._kind.setup, self._options
        return RunInfo(
            id=self.run.id,
            path=str(self.run.path),
            space=setup.name,
            device=setup.profile.name,
            strategy=options.strategy,
            seed=options.seed,
            population=options.population,
            trials=options.trials,
            minutes=options.minutes,
            already_done=self.store.count(),
            champions=options.champions if self._kind.confirms else 0,
            elapsed_s=self.store.elapsed_s(),
        )
