"""The loop of a run: ask, execute, store, tell. Deterministic, but never idle.

`ask` makes proposal n when `tell` has received exactly the outcomes of the trials before n -
`lookahead`, whether or not later ones have arrived. So proposals depend only on the seed and the
outcomes, and a run that was killed makes the same proposals again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from evotune.errors import StoreError
from evotune.run_options import RunOptions
from evotune.runs.folder import quarantine
from evotune.runs.observer import Observer, Progress
from evotune.search.strategy import Strategy
from evotune.store import RunStore
from evotune.trial import QUARANTINED, Configuration, Json, Outcome, Trial
from evotune.workers.executor import Executor, Proposal

_SNAPSHOT_EVERY = 1000
_POLL_S = 0.5
FINISH_S = 8.0
_LATE = 0.75
"""The share of the trials, or of the time, after which the best trials are likely to be the
champions."""


def first_asked(strategy: Strategy, options: RunOptions) -> list[Configuration]:
    """The configurations that a new search proposes before it knows an outcome."""
    first = [Configuration(values) for values in options.starts]
    count = min(options.lookahead + 1, options.trials)
    while len(first) < count:
        chosen = strategy.ask(len(first), tuple(first))
        if chosen is None:
            break
        first.append(chosen)
    return first[:count]


class SearchLoop:
    """Asks, executes, stores and tells until one of the run's limits is reached.

    - `options` that depend only on told trials end equal runs at the same trial: `compiles`,
      `speedup`, `no_improvement`.
    - `seconds`: the limit on searching, over all parts of the run.
    - `stop` is called between events: True ends this session early.
    - `quarantined`: the folder that gets a script of each quarantined trial, before its outcome is
      stored.
    - `late` is called after each told trial of the last quarter.

    The strategy learns the outcomes of the options' `starts`, although it did not ask for them.
    """

    def __init__(
        self,
        store: RunStore,
        strategy: Strategy,
        executor: Executor,
        propose: Callable[[int, Configuration], Proposal],
        *,
        options: RunOptions,
        seconds: float | None = None,
        searched_s: float,
        stop: Callable[[], bool],
        observer: Observer,
        quarantined: Path | None = None,
        late: Callable[[], None] = lambda: None,
        finish_s: float = FINISH_S,
    ) -> None:
        self._late = late
        self._finish_s = finish_s
        self._store = store
        self._strategy = strategy
        self._executor = executor
        self._propose = propose
        self._options = options
        self._lookahead = options.lookahead
        self._seconds = seconds
        self._fitness = None if options.speedup is None else math.log(options.speedup)
        self._starts = [Configuration(values) for values in options.starts]
        self._stop = stop
        self._observer = observer
        self._quarantined = quarantined
        self._started_s = time.monotonic() - searched_s
        self._stored: dict[int, Trial] = {}
        self._pending: deque[Configuration] = deque()
        self._arrived: dict[int, Outcome] = {}
        self._told = 0
        self._asked = 0
        self._exhausted = False
        self._best: Trial | None = None
        self._improved = 0  # trials told when the best was
        self._compiles = 0
        self._contender: float | None = None

    @property
    def searched_s(self) -> float:
        return time.monotonic() - self._started_s

    def run(self) -> str:
        """Searches, and returns why it ended: trials, minutes, compiles, speedup, no_improvement,
        exhausted or interrupted."""
        self._restore()
        while True:
            self._advance()
            ended = self._end_of_asking() or self._stop_reason()
            if self._told >= self._asked and ended:
                return ended
            reason = self._stop_reason()
            if reason:
                self._collect(self._finish_s)
                self._advance()
                return reason
            self._collect(_POLL_S)

    def _end_of_asking(self) -> str:
        """Why no more proposals are made; "" while the loop may ask. Outcomes of proposals in
        flight are still told."""
        options = self._options
        fitness = self._best.outcome.fitness if self._best is not None else None
        if self._exhausted:
            return "exhausted"
        if self._asked >= options.trials:
            return "trials"
        if self._fitness is not None and fitness is not None and fitness >= self._fitness:
            return "speedup"
        if options.compiles is not None and self._compiles >= options.compiles:
            return "compiles"
        if options.no_improvement is not None:
            stale = self._best is not None and self._told - self._improved >= options.no_improvement
            return "no_improvement" if stale else ""
        return ""

    def _stop_reason(self) -> str:
        if self._stop():
            return "interrupted"
        over = self._seconds is not None and self.searched_s >= self._seconds
        return "minutes" if over else ""

    def _restore(self) -> None:
        """Restores the newest snapshot from which every missing proposal can still be made in
        order."""
        enough = max(0, self._store.first_missing() - self._lookahead)
        snapshot = self._store.snapshot(at_most=enough)
        if snapshot is not None and self._take_up(snapshot[1]):
            # Proposals up to `told + lookahead` were asked by then.
            self._told = self._asked = snapshot[0]
            self._best = self._store.best(before=self._told)
            self._improved = self._best.number + 1 if self._best is not None else 0
            self._compiles = self._store.count_compiled(before=self._told)
        self._stored = {trial.number: trial for trial in self._store.trials(first=self._told)}

    def _take_up(self, state: Json) -> bool:
        """False for a snapshot of an earlier version; then all outcomes are replayed."""
        try:
            self._strategy.restore(state)
        except StoreError:
            return False
        return True

    def _advance(self) -> None:
        """Asks and tells as far as the available outcomes allow."""
        while True:
            self._ask()
            if self._told not in self._arrived:
                return
            self._tell()

    def _ask(self) -> None:
        while self._asked <= self._told + self._lookahead:
            number = self._asked
            known = self._stored.pop(number, None)
            # A stored trial was asked for before, when fewer may have been told.
            if known is None and (self._end_of_asking() or self._stop_reason()):
                return
            if known is not None:
                configuration: Configuration | None = known.configuration
                self._arrived[number] = known.outcome
            else:
                configuration = self._choose(number)
            if configuration is None:
                self._exhausted = True
                return
            self._pending.append(configuration)
            self._asked += 1
            if known is None:
                self._executor.submit(self._propose(number, configuration))

    def _choose(self, number: int) -> Configuration | None:
        if number < len(self._starts):
            return self._starts[number]
        return self._strategy.ask(number, tuple(self._pending))

    def _tell(self) -> None:
        number = self._told
        trial = Trial(number, self._pending.popleft(), self._arrived.pop(number))
        self._strategy.tell(trial)
        self._told += 1
        self._see(trial)
        contender = self._strategy.contender
        if contender != self._contender:  # the executor wakes for it
            self._contender = contender
            self._executor.set_contender(-math.inf if contender is None else contender)
        if self._told % _SNAPSHOT_EVERY == 0:
            self._store.save_snapshot(self._told, self._strategy.snapshot())
        progress = Progress(
            told=self._told,
            searched_s=self.searched_s,
            generation=self._strategy.generation,
            best=self._best,
            elites=[(elite.fitness, elite.configuration) for elite in self._strategy.elites],
        )
        self._observer.told(trial, progress)
        if self._told >= _LATE * self._options.trials or self._is_late():
            self._late()

    def _is_late(self) -> bool:
        return self._seconds is not None and self.searched_s >= _LATE * self._seconds

    def _see(self, trial: Trial) -> None:
        self._compiles += "compile" in trial.outcome.stage_s
        fitness = trial.outcome.fitness
        if fitness is None:
            return
        best = self._best.outcome.fitness if self._best is not None else None
        if best is None or fitness > best:
            self._best = trial
            self._improved = trial.number + 1

    def _collect(self, timeout_s: float) -> None:
        """Stores what has finished, before the search may see it."""
        for number, outcome in self._executor.poll(timeout_s):
            place = number - self._told
            if not 0 <= place < len(self._pending):
                raise StoreError(
                    f"an outcome arrived for proposal {number}, which was never asked for"
                )
            trial = Trial(number, self._pending[place], outcome)
            if QUARANTINED in outcome.flags and self._quarantined is not None:
                quarantine(self._quarantined, trial)
            self._store.append(trial, self.searched_s)
            self._arrived[number] = outcome
        self._store.sync()
