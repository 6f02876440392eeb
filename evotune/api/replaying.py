"""`replay`: runs a search strategy on a space that was measured before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.backends.base.recorded import RecordedSpace, recorded_space
from evotune.errors import UsageError
from evotune.report.data import RunData
from evotune.report.formats import document
from evotune.run_options import SearchSettings
from evotune.runs import replay as engine
from evotune.runs.folder import find_run
from evotune.runs.replay import Evaluation, Repeat, Score
from evotune.search.performance import PerformanceScale
from evotune.util.commands import RUNS_DIR

if TYPE_CHECKING:
    from evotune.search.catalog import StrategyMaker


__all__ = ["Evaluation", "Replay", "budget", "find_recording", "replay", "replaying"]


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay, with the repeats in order. `score`: 0 is random search, 1 finds the
    optimum at once; None where the recording has no valid configuration."""

    recording: RecordedSpace
    evaluations: int
    repeats: list[Repeat]
    score: Score | None

    @property
    def scale(self) -> PerformanceScale:
        """The budget and the optimum that the score refers to."""
        return PerformanceScale(self.recording.times_ms.values())


def replay(
    cache: str | Path,
    *,
    strategy: str | StrategyMaker = "evolution",
    evaluations: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    lookahead: int = 0,
    runs_dir: str | Path = RUNS_DIR,
) -> Replay:
    """Runs a search strategy on a recorded space; no device is needed.

    - `cache`: a Kernel Tuner cache, T4 results, an evotune run or its JSON report, or a space file
      with `recorded:`.
    - `evaluations`: how many each repeat makes, at most one of each configuration; None means the
      budget of the published score.
    - `repeats`, `seed`: the repeats have the seeds `seed`, `seed` + 1, …
    - `lookahead`: the number of proposals in flight.

    UsageError when `cache` is not a recording, for an unknown strategy, and for no evaluations.
    """
    recording = find_recording(Path(cache), Path(runs_dir))
    for name, number in (("repeats", repeats), ("evaluations", evaluations)):
        if number is not None and number < 1:
            raise UsageError(f"{name}: expected 1 or more, got {number}")
    count = min(evaluations or budget(recording), len(recording.space))
    found = [Repeat() for _ in range(repeats)]
    for evaluation in replaying(
        recording, strategy, count, repeats, seed=seed, lookahead=lookahead
    ):
        found[evaluation.repeat].add(evaluation)
    return Replay(recording, count, found, score(recording, found, count))


def replaying(
    recording: RecordedSpace,
    strategy: str | StrategyMaker,
    evaluations: int,
    repeats: int,
    *,
    seed: int,
    lookahead: int,
) -> Iterator[Evaluation]:
    """Replays, and yields each evaluation as soon as it was made."""
    for repeat in range(repeats):
        settings = SearchSettings(seed=seed + repeat, lookahead=lookahead)
        yield from engine.replay(recording, strategy, settings, evaluations, repeat)


def find_recording(cache: Path, runs_dir: Path) -> RecordedSpace:
    """The recording in a file. A name without a suffix that is not a file names a run."""
    if (os.path.lexists(cache) or cache.suffix) and not cache.is_dir():
        return engine.load_recording(cache)
    run = find_run(str(cache), runs_dir)
    with RunData.opened(run) as data:
        if not data.totals.trials:
            raise UsageError(f"run {run.id} has no trials yet: there is nothing to replay")
        return recorded_space("".join(document(data)), run.id)


def budget(recording: RecordedSpace) -> int:
    """The number of evaluations of the published score."""
    return PerformanceScale(recording.times_ms.values()).budget


def score(recording: RecordedSpace, repeats: list[Repeat], evaluations: int) -> Score | None:
    """The score of the repeats; None where the recording has no valid configuration."""
    if not recording.times_ms:
        return None
    return Score.of(PerformanceScale(recording.times_ms.values()), repeats, evaluations)
