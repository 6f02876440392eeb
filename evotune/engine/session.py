"""Starting and resuming runs: joins space, problem, device, store, search and executor."""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.backends.registry import measuring_alone
from evotune.command_line import RUNS_DIR
from evotune.engine import environment
from evotune.engine.cluster import Cluster, ClusterRequest, connected
from evotune.engine.folder import RunFolder, create_folder, write_durably
from evotune.engine.kept_files import fingerprints
from evotune.engine.observer import Observer
from evotune.engine.settings import stored_settings
from evotune.engine.setup import GpuRequest, Setup, load_run_setup, load_setup, snapshot
from evotune.engine.spaces import find_space, flagship
from evotune.engine.stop_signal import interruptible
from evotune.engine.warm_start import warm_starts
from evotune.engine.work import RunWork, search_settings
from evotune.errors import EnvironmentProblem, EvotuneError, SpaceError, UsageError
from evotune.search.catalog import create_strategy, same_strategy, strategy_name
from evotune.search.strategy import SearchSettings
from evotune.store import RunStore
from evotune.trial import Json

if TYPE_CHECKING:
    from evotune.search.own import StrategyMaker

_CHAMPIONS = 3
LOOKAHEAD_PER_DEVICE = 16
"""What keeps each of many GPUs fed (`benchmarks/lookahead.py`); then a constant of the run."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user asked for; None means: as the space says."""

    space: str | None
    device: str = "auto"
    runs_dir: Path = RUNS_DIR
    trials: int | None = None
    minutes: float | None = None
    seed: int | None = None
    strategy: str | StrategyMaker | None = None
    racing: bool = True
    compiles: int | None = None
    speedup: float | None = None
    no_improvement: int | None = None
    warm_start: RunFolder | None = None
    lookahead: int | None = None
    champions: int | None = None
    gpus: GpuRequest | None = None
    cluster: ClusterRequest | None = None
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """`reason`: as `SearchLoop.run` has it."""

    run: RunFolder
    reason: str
    ok_trials: int


def start_run(request: RunRequest, observer: Observer) -> RunResult:
    """A new run, to its end. Everything that can be refused is refused before it has a folder."""
    path = flagship(request.device) if request.space is None else find_space(request.space)
    with connected(request.cluster) as cluster:
        return _start_on(cluster, request, observer, path)


def _start_on(
    cluster: Cluster | None, request: RunRequest, observer: Observer, path: Path
) -> RunResult:
    setup = load_setup(path, request.device, gpus=request.gpus, elsewhere=cluster)
    settings = _settings(setup, request)
    if settings["speedup"] is not None and setup.planner is None:
        raise UsageError("a recorded space has no baseline, so no speedup to reach")
    if "error" in settings["objectives"] and setup.planner is None:
        raise UsageError("a recorded space has times alone: `objective: error` needs a kernel")
    starts = setup.space.starts()
    if request.warm_start is not None:
        starts = warm_starts(setup.space, starts, request.warm_start)
    # Nobody's wish but a default is each strategy's own matter: random search has no use for it.
    if request.warm_start is not None or (setup.document and setup.document.try_first):
        settings["starts"] = [configuration.to_json() for configuration in starts]
    strategy = settings["strategy"] if request.strategy is None else request.strategy
    create_strategy(strategy, setup.space, search_settings(settings))
    setup.space.size()  # refuses a space without a valid configuration
    described = environment.describe(setup.profile, request.command, setup.languages)
    with measuring_alone(() if cluster else setup.devices), interruptible():
        return _start(
            cluster,
            request,
            observer,
            path=path,
            setup=setup,
            settings=settings,
            described=described,
        )


def _start(
    cluster: Cluster | None,
    request: RunRequest,
    observer: Observer,
    *,
    path: Path,
    setup: Setup,
    settings: Json,
    described: Json,
) -> RunResult:
    run = create_folder(request.runs_dir, setup.name)
    try:
        return _begin(
            cluster,
            request,
            observer,
            run,
            path=path,
            setup=setup,
            settings=settings,
            described=described,
        )
    except BaseException as error:
        if not run.store.exists() or _is_mistaken(run, error):  # nothing that could be resumed
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _is_mistaken(run: RunFolder, error: BaseException) -> bool:
    """Whether a mistake of the user's was found before the first trial."""
    if not isinstance(error, EvotuneError) or error.exit_code != UsageError.exit_code:
        return False
    with RunStore.open_for_reading(run.store) as store:
        return store.count() == 0


def _begin(
    cluster: Cluster | None,
    request: RunRequest,
    observer: Observer,
    run: RunFolder,
    *,
    path: Path,
    setup: Setup,
    settings: Json,
    described: Json,
) -> RunResult:
    problem = setup.document.problem if setup.document else None
    space_file = snapshot(run, setup, path)
    secret = secrets.token_hex(8)
    write_durably(run.environment, (json.dumps(described, indent=2) + "\n").encode())
    facts = {
        "space": setup.name,
        "space_file": space_file,
        "sources": fingerprints(run),
        "environment": described,
        "kind": "kernel" if setup.planner else "recorded",
        "device": setup.profile.to_json(),
        "problem": {"name": problem.name, "dtype": problem.dtype} if problem else {},
        "settings": settings,
        "default": setup.space.default().to_json(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": described["command"],
        "state": "running",
        "secret": secret,
    }
    with run.locked(), RunStore.create(run.store, facts) as store:
        # From here on the run lives on its own copies of the sources.
        own = load_setup(
            run.sources / space_file,
            request.device,
            run,
            gpus=request.gpus,
            elsewhere=cluster,
            secret=secret,
        )
        try:
            return _finish(RunWork(run, store, own, observer, cluster, strategy=request.strategy))
        except SpaceError as error:
            if error.file != str(run.sources / space_file):
                raise
            # What the user can mend is the file that was named, not the run's copy of it.
            raise SpaceError(
                error.message, file=str(path), line=error.line, column=error.column
            ) from error


def resume_run(
    run: RunFolder,
    observer: Observer,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    strategy: str | StrategyMaker | None = None,
    allow_mixed: bool = False,
    gpus: GpuRequest | None = None,
    cluster: ClusterRequest | None = None,
) -> RunResult:
    """Goes on with a run, on as many GPUs as are asked for now; `trials` and `minutes` are new
    totals. `strategy`: the maker of the strategy of a user's own that the run has."""
    with (
        run.locked(),
        RunStore.open_for_writing(run.store) as store,
        connected(cluster) as elsewhere,
    ):
        settings = stored_settings(store)
        same_strategy(settings["strategy"], strategy)
        done = store.count()
        if trials is not None and trials < done:
            raise UsageError(f"run {run.id} has {done} trials already; ask for more than that")
        for name, value in (("trials", trials), ("minutes", minutes)):
            if value is not None:
                settings[name] = value
        if done >= settings["trials"]:
            observer.phase(f"all {done} trials are done; --trials asks for more")
        setup = load_run_setup(run, store, gpus, elsewhere)
        changes = []
        if not allow_mixed:
            now = environment.describe(setup.profile, (), setup.languages)
            then = environment.read(run.environment, store.meta("environment"))
            changes = environment.changes(then, now)
        if changes:
            raise EnvironmentProblem(
                f"run {run.id} was made elsewhere ({'; '.join(changes)}): times would not compare; "
                "use --allow-mixed to go on all the same"
            )
        with measuring_alone(() if elsewhere else setup.devices):
            store.set_facts({"settings": settings, "state": "running"})
            return _finish(RunWork(run, store, setup, observer, elsewhere, strategy=strategy))


def _settings(setup: Setup, request: RunRequest) -> dict[str, Json]:
    document, defaults = setup.document, SearchSettings()
    settings: dict[str, Json] = {
        "strategy": document.search.strategy if document else "evolution",
        "seed": document.search.seed if document else defaults.seed,
        "population": document.search.population if document else defaults.population,
        "elites": document.search.elites if document else defaults.elites,
        "lookahead": document.search.lookahead if document else defaults.lookahead,
        "objectives": list(document.objectives if document else defaults.objectives),
        "trials": document.budget.trials if document else 1000,
        "minutes": document.budget.minutes if document else None,
        "champions": _CHAMPIONS,
        "racing": True,
        "compiles": document.budget.compiles if document else None,
        "speedup": document.budget.speedup if document else None,
        "no_improvement": document.stop.no_improvement if document else None,
    }
    asked = ("strategy", "seed", "trials", "minutes", "racing", "lookahead", "champions")
    for name in (*asked, "compiles", "speedup", "no_improvement"):
        value = getattr(request, name)
        if value is not None:
            settings[name] = value
    settings["strategy"] = strategy_name(settings["strategy"])
    if request.lookahead is None and len(setup.devices) > 1:
        enough = LOOKAHEAD_PER_DEVICE * len(setup.devices)
        settings["lookahead"] = max(settings["lookahead"], enough)
    return settings


def _finish(work: RunWork) -> RunResult:
    reason = work.run_to_end()
    return RunResult(work.run, reason, work.store.count_ok())
