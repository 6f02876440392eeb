"""Runs search strategies on a recorded space and scores them, without a device or a run's folder.

The score is the published one for a space whose every time is known: 0 is random search, 1 is the
optimum from the first evaluation on, below 0 is worse than random. Source: the autotuning
methodology of Willemsen et al. (`searchspace_statistics.py`, `baseline.py`, `report_experiments.py`
of AutoTuningAssociation/autotuning_methodology), with evaluations as the axis.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from evotune.backends.base.recorded import RecordedSpace, read_named_recording, read_recorded_space
from evotune.errors import UsageError
from evotune.run_options import SearchSettings
from evotune.runs.spaces import is_recording
from evotune.search.catalog import create_strategy
from evotune.space.document import load_space
from evotune.trial import Configuration, Trial

if TYPE_CHECKING:
    from evotune.search.catalog import StrategyMaker

CUTOFF: Final = 0.95
MAX_BUDGET: Final = 700


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of one repeat, numbered as in the jsonl form.

    - `repeat` counts from 0, `number` from 1.
    - `time_ms` is None if the configuration failed.
    - `search_s`: the time that `ask` and `tell` took for it.
    """

    repeat: int
    number: int
    configuration: Configuration
    time_ms: float | None
    search_s: float


@dataclass(slots=True)
class Repeat:
    """The evaluations of one run of a strategy, in order."""

    times_ms: list[float | None] = field(default_factory=list)
    search_s: list[float] = field(default_factory=list)

    def add(self, evaluation: Evaluation) -> None:
        self.times_ms.append(evaluation.time_ms)
        self.search_s.append(evaluation.search_s)

    @property
    def best_ms(self) -> float | None:
        return min((t for t in self.times_ms if t is not None), default=None)

    def evaluations_to(self, time_ms: float) -> int | None:
        """The number of evaluations until a configuration took at most `time_ms`; None if none
        did."""
        for number, found in enumerate(self.times_ms, start=1):
            if found is not None and found <= time_ms:
                return number
        return None


def load_recording(path: Path) -> RecordedSpace:
    """Reads a recording, or the recording that a space file names. Raises UsageError if there is
    none."""
    if is_recording(path):
        return read_recorded_space(path)
    document = load_space(path)
    if document.recorded is None:
        raise UsageError(f"{path} is not a recorded space: only what was measured can be replayed")
    return read_named_recording(document.recorded)


def replay(
    recording: RecordedSpace,
    strategy: str | StrategyMaker,
    settings: SearchSettings,
    evaluations: int,
    repeat: int,
) -> Iterator[Evaluation]:
    """Runs a strategy as a search would: proposal n knows the outcomes of the trials before n -
    lookahead. Ends early if the space is exhausted."""
    search = create_strategy(strategy, recording.space, settings)
    pending: deque[Configuration] = deque()
    told = 0
    for number in range(min(evaluations, len(recording.space))):
        started_s = time.perf_counter()
        while len(pending) > settings.lookahead:
            configuration = pending.popleft()
            search.tell(Trial(told, configuration, recording.outcome(configuration)))
            told += 1
        proposal = search.ask(number, tuple(pending))
        search_s = time.perf_counter() - started_s
        if proposal is None:
            return
        pending.append(proposal)
        time_ms = recording.times_ms.get(proposal)
        yield Evaluation(repeat, number + 1, proposal, time_ms, search_s)


@dataclass(frozen=True, slots=True)
class Score:
    """The published score (`PerformanceScale`) of several repeats. `standard_error` is that of the
    mean over repeats; None for a single one."""

    mean: float
    standard_error: float | None
    below_random: float

    @classmethod
    def of(cls, scale: PerformanceScale, repeats: list[Repeat], evaluations: int) -> Score:
        scores = [scale.score(repeat.times_ms, evaluations) for repeat in repeats]
        mean = math.fsum(scores) / len(scores)
        error = None
        if len(scores) > 1:
            variance = math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1)
            error = math.sqrt(variance / len(scores))
        below = sum(scale.ends_below_random(repeat.times_ms, evaluations) for repeat in repeats)
        return cls(mean, error, below / len(repeats))


class PerformanceScale:
    """Random search and the optimum on one space, between which the score is measured.

    `valid_times` are the times of all valid configurations, in any unit. Failed configurations are
    not part of the random baseline; a search pays one evaluation for each failed proposal.
    """

    def __init__(self, valid_times: Iterable[float]) -> None:
        self._worst_first: NDArray[np.float64] = np.sort(np.fromiter(valid_times, float))[::-1]
        if len(self._worst_first) == 0:
            raise UsageError("no configuration of the space has a time: nothing to score")
        self.optimum = float(self._worst_first[-1])
        self.median = float(np.median(self._worst_first))

    @property
    def target(self) -> float:
        """The time that ends a budget: 95% of the way from the median to the optimum."""
        return self.optimum + (self.median - self.optimum) * (1 - CUTOFF)

    @property
    def budget(self) -> int:
        """The evaluations that random search is expected to need for the target, at most 700."""
        count = len(self._worst_first)
        index = int(np.argmax(self._worst_first <= self.target))
        return min(MAX_BUDGET, max(1, math.ceil(index / (count + 1 - index))))

    def baseline(self, evaluations: int) -> NDArray[np.float64]:
        """The time that random search without replacement has after 1, 2, … evaluations.

        The methodology smooths by PCHIP, which passes through its points. With one point for each
        evaluation no gaps are left to smooth.
        """
        count = len(self._worst_first)
        indices = [
            min(count - 1, round(m * (count + 1) / (m + 1))) for m in range(1, evaluations + 1)
        ]
        return self._worst_first[indices]

    def score(self, times: Sequence[float | None], evaluations: int | None = None) -> float:
        """The score of one run, whose evaluations had these `times` (None: failed).

        The score is the mean of (baseline - best so far) / (baseline - optimum) over `evaluations`
        (None: the budget). The mean over runs is the score of their mean curve. A run that has
        found nothing valid yet counts as the median, where random search starts. A run that ended
        early keeps its best. Once random search has reached the optimum, a run scores 1 if it is
        there too, else 0.
        """
        length = self.budget if evaluations is None else evaluations
        best = self.best_so_far(times, length)
        baseline = self.baseline(length)
        room = baseline - self.optimum
        relative = np.where(best <= self.optimum, 1.0, 0.0)
        np.divide(baseline - best, room, out=relative, where=room > 0)
        return float(relative.mean())

    def best_so_far(self, times: Sequence[float | None], evaluations: int) -> NDArray[np.float64]:
        """The best time after each evaluation; the median before the first success."""
        padded = [math.inf if time is None else time for time in times[:evaluations]]
        padded += [math.inf] * (evaluations - len(padded))
        best = np.minimum.accumulate(np.array(padded))
        return np.where(np.isinf(best), self.median, best)

    def ends_below_random(
        self, times: Sequence[float | None], evaluations: int | None = None
    ) -> bool:
        """Whether the run's final best time is worse than the one expected of random search."""
        length = self.budget if evaluations is None else evaluations
        return bool(self.best_so_far(times, length)[-1] > self.baseline(length)[-1])
