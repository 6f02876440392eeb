"""Runs search strategies on a recorded space, and scores them: no device, no run's folder."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.backends.base.recorded import RecordedSpace, read_named_recording, read_recorded_space
from evotune.errors import UsageError
from evotune.run_options import SearchSettings
from evotune.runs.spaces import is_recording
from evotune.search.catalog import create_strategy
from evotune.search.performance import PerformanceScale
from evotune.space.document import load_space
from evotune.trial import Configuration, Trial

if TYPE_CHECKING:
    from evotune.search.catalog import StrategyMaker


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
        """How many evaluations it took to find something at least that fast; None: not found."""
        for number, found in enumerate(self.times_ms, start=1):
            if found is not None and found <= time_ms:
                return number
        return None


def load_recording(path: Path) -> RecordedSpace:
    """From a recording, or from a space file that names one; else UsageError."""
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
    """One run of a strategy, as the engine would drive it: proposal n sees the outcomes of the
    trials before n - lookahead. Ends early when the space is exhausted."""
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
    """Repeats against the published score (`evotune.search.performance`). `standard_error` is of
    the mean over repeats, None for a single one."""

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
