"""`tune`: makes a new run. `new_run` is the same for a caller that watches it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from evotune.api._given_space import (
    AnyCases,
    AnySpace,
    SpaceKeywords,
    case_entries,
    space_file,
    trusting,
)
from evotune.api.observing import Observer, watching
from evotune.api.run import Run, open_run
from evotune.runs.cluster_run import cluster_request
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
      run; None means the space's own. Of the `minutes`, which count over all sessions, 70% are for
      searching and the rest for confirming, which may take longer; all are for searching where
      nothing is confirmed.
    - `strategy`: evolution, local, random, exhaustive, nsga2, or a class with `ask` and `tell`
      (`evotune.Strategy`).
    - `device`: auto, cpu, cuda:N, or a GPU's name (l4, h100, …), which requires that model.
    - `runs_dir`: the folder in which the run's own folder is made.
    - `warm_start`: a run whose best configurations are tried first.
    - `cases`: take the place of the space's shapes and variants: a file, or a list such as
      `[{"batch": 1, "heads": 8, "seq_len": 512, "head_dim": 64, "causal": True}]`. A warning names
      those that no kernel of the space takes.
    - `champions`: how many of the best candidates are confirmed in fresh processes (3).
    - `racing`: whether candidates that cannot win get fewer samples.
    - `lookahead`: the number of trials in flight.
    - `gpus`: "all" or a number; `cluster`: tcp://HOST:PORT or local:N; `allow_mixed`: GPUs of
      several models together.
    - `trust`: execute kernels and problems even if they lie outside the working folder.
    - `on_trial`: called with each finished trial (number, configuration, outcome) while the next
      ones are at work. An exception from it ends the run, which can be resumed.
    - `on_note`: called with a line for each stage, such as `print`: which other work may disturb
      the times, and that champions are being confirmed. That can take minutes: every ten seconds
      a line says how far it is.

    Ctrl-C in the main thread ends the run tidily; its state is then "interrupted". Nothing else in
    the caller's process changes. Worker processes do not run the caller's script again, so it needs
    no `__main__` guard.

    SpaceError, ProblemMistake or UsageError for a mistake in the space or the arguments,
    EnvironmentProblem when this machine lacks something.

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
    """A new run on a space's file, to its end. `space` None: the flagship for the device.

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
