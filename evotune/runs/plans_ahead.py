"""Plans likely champions in a thread of its own while the search ends.

A champion's proposal has hundreds of cases, of which each is drawn and planned: that takes seconds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable

from evotune.trial import Trial
from evotune.workers.executor import Proposal

_SWITCH_S = 0.0005
"""Threads take turns this often while one plans: the executor's must not keep devices waiting."""


class PlansAhead:
    """Proposals by trial, each made once. `plan` gives equal ones for equal trials, and may be
    called in any thread."""

    def __init__(self, plan: Callable[[Trial], Proposal]) -> None:
        self._plan = plan
        self._made: dict[int, Proposal] = {}
        self._planning = threading.Lock()
        self._wanted: frozenset[int] = frozenset()

    def expect(self, trials: Iterable[Trial]) -> None:
        """Begins to plan these, the first one first. Of those expected before, no others follow."""
        trials = list(trials)
        self._wanted = frozenset(trial.number for trial in trials)
        if self._wanted - self._made.keys():
            # A process that ends does not wait for it.
            threading.Thread(target=self._work, args=(trials,), daemon=True).start()

    def _work(self, trials: Iterable[Trial]) -> None:
        usual_s = sys.getswitchinterval()
        for trial in trials:
            with self._planning:
                sys.setswitchinterval(min(usual_s, _SWITCH_S))
                try:
                    if trial.number in self._wanted and trial.number not in self._made:
                        self._made[trial.number] = self._plan(trial)
                except Exception:  # noqa: BLE001 (whoever asks for it plans it again, and meets it)
                    return
                finally:
                    sys.setswitchinterval(usual_s)

    def made(self) -> list[Proposal]:
        """Those that are there, without waiting."""
        return list(self._made.values())

    def of(self, trial: Trial) -> Proposal:
        """Waits for the one that is being planned. Raises what `plan` raises."""
        with self._planning:
            if trial.number not in self._made:
                self._made[trial.number] = self._plan(trial)
            return self._made[trial.number]
