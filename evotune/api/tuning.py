"""`tune` makes a new run; `new_run` does so for a caller that watches it.

`replay` runs a search strategy on a space that was measured before.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from evotune.api.given_space import (
    AnyCases,
    AnySpace,
    SpaceKeywords,
    case_entries,
    space_file,
    trusting,
)
from evotune.api.observing import Observer, watching
from evotune.api.run import Run, open_run
from evotune.backends.base.recorded import RecordedSpace, recorded_space
from evotune.errors import UsageError
from evotune.report.data import RunData
from evotune.report.formats import document
from evotune.run_options import SearchSettings
from evotune.runs import replay as engine
from evotune.runs.cluster_run import cluster_request
from evotune.runs.folder import find_run
from evotune.runs.replay import Evaluation, PerformanceScale, Repeat, Score
from evotune.runs.setup import GpuRequest
from evotune.runs.starting import RunRequest, RunResult, start_run
from evotune.trial import Trial
from evotune.util.commands import RUNS_DIR

if TYPE_CHECKING:
    from evotune.search.catalog import StrategyMaker


def tune(
    space: AnySpace,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    compiles: int | None = None,
    speedup: float | None = None,
    no_improvement: int | None = None,
    seed: int | None = None,
    strategy: str | StrategyMaker | None = None,
    device: str = "auto",
    runs_dir: str | Path = RUNS_DIR,
    warm_start: Run | str | Path | None = None,
    cases: AnyCases | None = None,
    champions: int | None = None,
    racing: bool = True,
    lookahead: int | None = None,
    gpus: int | str | None = None,
    cluster: str | None = None,
    allow_mixed: bool = False,
    trust: bool = False,
    on_trial: Callable[[Trial], object] | None = None,
    on_note: Callable[[str], object] | None = None,
    **space_keywords: Unpack[SpaceKeywords],
) -> Run:
    """Searches a space for the fastest correct configuration. Returns the finished run.

    `space` is the path of a space file, the name of a shipped space, an `evotune.Space`, or a
    kernel with the other arguments of `Space` as keywords.

    - `trials`, `minutes`, `compiles`, `speedup`, `no_improvement` (in trials): limits that end the
      run; None means the space's own. The `minutes` count over all sessions: 70% are for searching
      and the rest for confirming, which may take longer. If nothing is confirmed, all are for
      searching.
    - `strategy`: evolution, local, random, exhaustive, nsga2, or a class with `ask` and `tell`
      (`evotune.Strategy`).
    - `device`: auto, cpu, cuda:N, or a GPU's name (l4, h100, …), which requires that model.
    - `runs_dir`: the folder in which the run's own folder is made.
    - `warm_start`: a run whose best configurations are tried first.
    - `cases`: replace the space's shapes and variants: a file, or a list such as `[{"batch": 1,
      "heads": 8, "seq_len": 512, "head_dim": 64, "causal": True}]`. A warning names the cases that
      no kernel of the space can compute.
    - `champions`: how many of the best candidates are confirmed in fresh processes (3).
    - `racing`: whether candidates that cannot win get fewer samples.
    - `lookahead`: the number of trials in flight.
    - `gpus`: "all" or a number; `cluster`: tcp://HOST:PORT or local:N; `allow_mixed`: GPUs of
      several models together.
    - `trust`: execute kernels and problems even if they lie outside the working folder.
    - `on_trial`: called with each finished trial (number, configuration, outcome) while the next
      ones are at work. An exception from it ends the run, which can be resumed.
    - `on_note`: a function such as `print`, called with a line for each stage: which other work may
      disturb the times, and that champions are being confirmed. Confirming can take minutes; every
      ten seconds a line reports its progress.

    Ctrl-C in the main thread ends the run tidily; its state is then "interrupted". Nothing else in
    the caller's process changes. Worker processes do not run the caller's script again, so it needs
    no `__main__` guard.

    Raises SpaceError, ProblemMistake or UsageError for a mistake in the space or the arguments, and
    EnvironmentProblem if this machine lacks something.

    >>> import evotune, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> small = [{"rows": 64, "columns": 256}]
    >>> run = evotune.tune("softmax-cpu", trials=1, champions=0, runs_dir=folder, cases=small)
    >>> run.state, len(run.trials)
    ('finished:trials', 1)
    """
    with (
        trusting(trust),
        space_file(space, space_keywords) as file,
    ):
        found = new_run(
            file,
            watching(on_trial, on_note),
            {
                "trials": trials,
                "minutes": minutes,
                "compiles": compiles,
                "speedup": speedup,
                "no_improvement": no_improvement,
                "seed": seed,
                "champions": champions,
                "racing": racing,
                "lookahead": lookahead,
            },
            device=device,
            runs_dir=runs_dir,
            strategy=strategy,
            warm_start=warm_start,
            cases=cases,
            gpus=gpus,
            cluster=cluster,
            allow_mixed=allow_mixed,
        )
    run = Run(found.run)
    if said := run.skipped_cases:
        warnings.warn(said, stacklevel=2)
    return run


def new_run(
    space: str | None,
    observer: Observer,
    options: Mapping[str, float | None],
    *,
    device: str = "auto",
    runs_dir: str | Path = RUNS_DIR,
    strategy: str | StrategyMaker | None = None,
    warm_start: Run | str | Path | None = None,
    cases: AnyCases | None = None,
    gpus: int | str | None = None,
    cluster: str | None = None,
    allow_mixed: bool = False,
    command: tuple[str, ...] = (),
) -> RunResult:
    """Makes a new run of a space file and runs it to its end. If `space` is None, it is the
    flagship for the device.

    `options` are limits and settings by name; None means the space's own. `command` is the command
    line, for the record. The other arguments and the errors are those of `tune`.
    """
    earlier = None
    if warm_start is not None:
        known = warm_start if isinstance(warm_start, Run) else open_run(warm_start, runs_dir)
        earlier = known.folder
    request = RunRequest(
        space=space,
        device=device,
        runs_dir=Path(runs_dir),
        options=options,
        strategy=strategy,
        warm_start=earlier,
        gpus=None if gpus is None else GpuRequest.parse(gpus, allow_mixed=allow_mixed),
        cluster=cluster_request(cluster, device, gpus, allow_mixed=allow_mixed),
        cases=case_entries(cases),
        command=command,
    )
    return start_run(request, observer)


__all__ = ["Evaluation", "Replay", "budget", "find_recording", "replay", "replaying"]


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay, with the repeats in order. `score`: 0 for random search, 1 for
    finding the optimum at once; None if the recording has no valid configuration."""

    recording: RecordedSpace
    evaluations: int
    repeats: list[Repeat]
    score: Score | None

    @property
    def scale(self) -> PerformanceScale:
        """The scale of the score: its budget and its optimum."""
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

    Raises UsageError if `cache` is not a recording, for an unknown strategy, and for no
    evaluations.
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
    """Replays, and yields each evaluation as soon as it is made."""
    for repeat in range(repeats):
        settings = SearchSettings(seed=seed + repeat, lookahead=lookahead)
        yield from engine.replay(recording, strategy, settings, evaluations, repeat)


def find_recording(cache: Path, runs_dir: Path) -> RecordedSpace:
    """The recording that `cache` names: a file or, if there is no such file and the name has no
    suffix, a run."""
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
    """The score of the repeats; None if the recording has no valid configuration."""
    if not recording.times_ms:
        return None
    return Score.of(PerformanceScale(recording.times_ms.values()), repeats, evaluations)
