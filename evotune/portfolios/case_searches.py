"""The searches of a portfolio: each is an ordinary run for one case, in the portfolio's folder.

A fact in a run's store says to which portfolio and case the run belongs. So a portfolio that was
killed at any moment finds its runs again.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evotune.errors import EvotuneError, StoreError
from evotune.portfolios.matrix_store import OTHER_BINARY, Point, distance
from evotune.runs.confirmed_champions import Champion, champions_of
from evotune.runs.folder import RunFolder, list_runs
from evotune.runs.observer import Observer
from evotune.runs.reopening import ReopenedRun
from evotune.runs.starting import RunRequest, resume_run, start_run
from evotune.space.reading.case_file import CaseEntry
from evotune.space.specs import GivenCase
from evotune.store import RunStore
from evotune.trial import Json

FACT = "portfolio"
"""The name of a fact in the store of each run of a portfolio: the portfolio and the case of the
run."""
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
        self.runs.update(self.all_runs())

    def all_runs(self) -> list[tuple[str, RunFolder]]:
        """The runs of this portfolio in its folder, each with the label of its case."""
        found = []
        for run in list_runs(self._runs_dir):
            with RunStore.open_for_reading(run.store) as store:
                fact = store.meta(FACT)
            if isinstance(fact, dict) and fact.get("id") == self._identity:
                found.append((str(fact.get("case")), run))
        return found

    def is_finished(self, label: str) -> bool:
        return label in self.runs and _state(self.runs[label]).startswith("finished")

    def trials(self) -> int:
        """The number of trials of all runs together."""
        found = 0
        for run in self.runs.values():
            with RunStore.open_for_reading(run.store, checked=True) as store:
                found += store.count()
        return found

    def elapsed_s(self, label: str) -> float:
        """The time at work on the search of a case, over all parts of its run."""
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
        """Searches for a case, or continues its run. Raises KeyboardInterrupt if the user ended it,
        and SpaceError if the space has no configuration for the case."""
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
                    facts={FACT: {"id": self._identity, "case": label}},
                    command=self._command,
                )
                result = start_run(request, observer)
        self.runs[label] = result.run
        if result.reason == "interrupted":
            raise KeyboardInterrupt

    def champions(self, say: Callable[[str], None]) -> list[Champion]:
        """The best confirmed champion of each finished run. Reports each run without one, once."""
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


_SEARCHING = 0.6
"""Share of the minutes that searches get. The matrix gets the rest."""
SERVED_BADLY = 0.97
"""The share of the expected speedup below which a case counts as served badly."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Divides the budget of a portfolio among its searches.

    The `first` searches go to representative cases (`PortfolioWork`). Up to half as many
    additional searches go to cases that are served badly. Each search gets the same share of
    `trials` and of `minutes`; None means no limit.
    """

    first: int
    trials: int | None
    minutes: float | None

    @property
    def most(self) -> int:
        return self.first + math.ceil(self.first / 2)

    def has_more(self, searches: int, trials: int, elapsed_s: float) -> bool:
        """Whether another search has trials and time left."""
        if searches >= self.most or (self.trials is not None and trials >= self.trials):
            return False
        return self.has_time(elapsed_s)

    def has_time(self, elapsed_s: float) -> bool:
        """Whether there is time to begin a search. The matrix needs the rest of the time."""
        return self.minutes is None or elapsed_s < 60 * _SEARCHING * self.minutes

    def options(self, searches: int, trials: int) -> dict[str, Json]:
        """The options with the limits of the next run. One of its champions is confirmed."""
        left = max(1, self.most - searches)
        found: dict[str, Json] = {"champions": 1}
        if self.trials is not None:
            found["trials"] = max(1, (self.trials - trials) // left)
        if self.minutes is not None:
            found["minutes"] = _SEARCHING * self.minutes / self.most
        return found


def nearest_searched(point: Point, searched: Iterable[Point]) -> str | None:
    """The searched case with whose best configurations the search for `point` begins."""
    others = [other for other in searched if other.label != point.label]
    found = min(others, key=lambda other: (distance(point, other), other.label), default=None)
    return None if found is None else found.label


def worst_served(
    points: Sequence[Point], searched: Collection[str], variants: Sequence[str]
) -> str | None:
    """The label of the case for the next search: the case without a search that falls furthest
    below the expected speedup. None if every case reaches 97% of it.

    The expected speedup is the mean over the searched cases with the same binaries, weighted by
    nearness. A case is behind by ln(expected / reached) times its weight. A case that shares no
    binary with a searched case comes first, because no kernel can serve it.
    """
    best: tuple[float, str] | None = None
    for point in points:
        if point.label in searched:
            continue
        known = [
            (apart, _reached(other))
            for other in points
            if other.label in searched
            and (apart := distance(point, other, variants)) < OTHER_BINARY
        ]
        weights = [1.0 / (apart * apart + 1e-6) for apart, _ in known]
        behind = math.inf
        if known:
            pairs = zip(weights, known, strict=True)
            expected = sum(w * reached for w, (_, reached) in pairs) / sum(weights)
            behind = expected - _reached(point)
        if behind > -math.log(SERVED_BADLY):
            rank = point.weight * behind
            if best is None or rank > best[0]:
                best = rank, point.label
    return None if best is None else best[1]


def _reached(point: Point) -> float:
    """ln of the best speedup that a kernel reaches there; 0 for PyTorch's own."""
    return max([0.0, *(point.gain(kernel) for kernel in range(len(point.scores)))])
