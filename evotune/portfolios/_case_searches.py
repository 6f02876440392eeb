"""The searches of a portfolio: an ordinary run for one case each, in the portfolio's folder.

A run knows by a fact in its store which portfolio and case it belongs to. So a portfolio that was
killed finds its runs again, whenever that was.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from evotune.errors import EvotuneError, StoreError
from evotune.runs.confirmed_champions import Champion, champions_of
from evotune.runs.folder import RunFolder, list_runs
from evotune.runs.observer import Observer
from evotune.runs.reopening import ReopenedRun
from evotune.runs.starting import RunRequest, resume_run, start_run
from evotune.space.reading.case_file import CaseEntry
from evotune.space.specs import GivenCase
from evotune.store import RunStore
from evotune.trial import Json

_FACT = "portfolio"
Observing = Callable[[], "contextlib.AbstractContextManager[Observer]"]


class CaseSearches:
    """The runs of one portfolio."""

    def __init__(
        self, identity: str, space: str, device: str, runs_dir: Path, command: tuple[str, ...]
    ) -> None:
        self._identity = identity
        self._space = space
        self._device = device
        self._runs_dir = runs_dir
        self._command = command
        self._champions: dict[str, Champion | None] = {}
        self.runs: dict[str, RunFolder] = {}
        """By the label of their case, the oldest first."""
        for run in list_runs(runs_dir):
            with RunStore.open_for_reading(run.store) as store:
                fact = store.meta(_FACT)
                if isinstance(fact, dict) and fact.get("id") == identity:
                    self.runs[str(fact.get("case"))] = run

    def is_finished(self, label: str) -> bool:
        return label in self.runs and _state(self.runs[label]).startswith("finished")

    def trials(self) -> int:
        """Of all runs together."""
        found = 0
        for run in self.runs.values():
            with RunStore.open_for_reading(run.store, checked=True) as store:
                found += store.count()
        return found

    def elapsed_s(self, label: str) -> float:
        """Time at work on the search of a case, over all parts of its run."""
        with RunStore.open_for_reading(self.runs[label].store) as store:
            return store.elapsed_s()

    def search(
        self,
        label: str,
        case: GivenCase,
        options: Mapping[str, Json],
        warm_start: str | None,
        observing: Observing,
    ) -> None:
        """Searches for a case, or goes on with its run. KeyboardInterrupt where the user ended it;
        SpaceError where the space has no configuration for the case."""
        with observing() as observer:
            if label in self.runs:
                result = resume_run(self.runs[label], observer)
            else:
                request = RunRequest(
                    space=self._space,
                    device=self._device,
                    runs_dir=self._runs_dir,
                    options=options,
                    warm_start=self._start(warm_start),
                    cases=[CaseEntry({}, case.shape, case.variant, None, case.count)],
                    facts={_FACT: {"id": self._identity, "case": label}},
                    command=self._command,
                )
                result = start_run(request, observer)
        self.runs[label] = result.run
        if result.reason == "interrupted":
            raise KeyboardInterrupt

    def champions(self, say: Callable[[str], None]) -> list[Champion]:
        """The best confirmed champion of each finished run. A run without one is said, once."""
        for label, run in self.runs.items():
            if run.id in self._champions or not self.is_finished(label):
                continue
            reopened = ReopenedRun.load(run)
            try:
                self._champions[run.id] = champions_of(reopened)[0]
            except StoreError:
                raise
            except EvotuneError as error:
                self._champions[run.id] = None
                say(f"{label}: {error}")
        found = (self._champions.get(run.id) for run in self.runs.values())
        return [champion for champion in found if champion is not None]

    def _start(self, label: str | None) -> RunFolder | None:
        """The run to begin with, if it has a valid trial."""
        run = self.runs.get(label) if label is not None else None
        if run is None:
            return None
        with RunStore.open_for_reading(run.store) as store:
            return run if store.best(before=sys.maxsize) is not None else None


def _state(run: RunFolder) -> str:
    with RunStore.open_for_reading(run.store) as store:
        return str(store.meta("state", ""))
