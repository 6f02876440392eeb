"""Starts and resumes runs: joins space, problem, device, store, search and executor."""

from __future__ import annotations

import contextlib
import json
import math
import random
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from evotune.backends import registry
from evotune.backends.registry import measuring_alone
from evotune.errors import EnvironmentProblem, EvotuneError, StoreError, UsageError
from evotune.run_options import RunOptions
from evotune.runs import environment
from evotune.runs.cluster_run import Cluster, ClusterRequest, connected
from evotune.runs.folder import RunFolder, create_folder, write_durably
from evotune.runs.given_cases import GIVEN_CASES, skipped_in_words
from evotune.runs.kernel_run import KernelRun, RecordedRun
from evotune.runs.observer import CLOSING, CONFIRMING, SEARCHING, Observer, PhaseTimes, RunInfo
from evotune.runs.search_loop import FINISH_S, SearchLoop, first_asked
from evotune.runs.setup import (
    GpuRequest,
    KernelSetup,
    RecordedSetup,
    Setup,
    load_run_setup,
    load_setup,
)
from evotune.runs.spaces import find_space, fingerprints, flagship, snapshot
from evotune.search.catalog import create_strategy, same_strategy, strategy_name
from evotune.search.strategy import Strategy
from evotune.space.document import KERNEL
from evotune.space.reading.case_file import CaseEntry
from evotune.space.search_space import SearchSpace
from evotune.store import AROUND_SEARCH, PHASES, RunStore
from evotune.trial import Configuration, Json, Outcome, OutcomeKind, Trial, Value
from evotune.util.commands import RUNS_DIR
from evotune.util.processes import StopSignal, interruptible
from evotune.workers.early_worker import EarlyWorker
from evotune.workers.executor import Executor, Proposal

if TYPE_CHECKING:
    from evotune.search.catalog import StrategyMaker


# --- The best of an earlier run as the first proposals of a new one -------------------------------
_STARTS: Final = 8


def warm_starts(
    space: SearchSpace, first: Sequence[Configuration], run: RunFolder
) -> list[Configuration]:
    """The configurations to try `first`, then the best ones of `run`, each made valid in this space
    (`brought_into`).

    The run may be of another shape, device or version of the space. Raises UsageError if the run
    has no valid configuration, or shares no parameter with the space.
    """
    with RunStore.open_for_reading(run.store) as store:
        best = store.best(before=sys.maxsize)
        if best is None:
            raise UsageError(f"run {run.id} has no valid configuration to start from")
        names = {parameter.name for parameter in space.parameters}
        if not names & best.configuration.keys():
            raise UsageError(f"run {run.id} shares no parameter with this space")
        starts = dict.fromkeys(first)
        most = len(starts) + _STARTS
        for trial in store.best_first():
            if len(starts) == most:
                break
            repaired = brought_into(space, trial.configuration)
            if repaired is not None:
                starts[repaired] = None
    return list(starts)


def brought_into(space: SearchSpace, values: Mapping[str, Value]) -> Configuration | None:
    """Makes a configuration from another shape, device or version of the space valid in this space.
    Parameters that it lacks, or whose values this space lacks, get their defaults. A configuration
    that breaks a constraint is repaired; None if that is impossible."""
    own = {parameter.name: parameter.values for parameter in space.parameters}
    known = {name: value for name, value in values.items() if value in own.get(name, ())}
    return space.repair({**space.default(), **known}, random.Random(0))


LOOKAHEAD_PER_DEVICE = 16
"""The lookahead for each of several devices: enough to feed it (`benchmarks/lab/lookahead.py`). It
is fixed for the run."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request for a new run.

    - `space`: a file or a shipped space's name; None: the flagship for the device.
    - `options`: values of `RunOptions`, by name, that replace the space's. None leaves the space's
      value.
    - `strategy`: a strategy's name, or a strategy of the user's own.
    - `gpus` and `cluster`: measure on several devices.
    - `cases`: replace the space's.
    - `dtype`: replaces the problem's.
    - `near`: configurations to try before the space's default. They may be of another case;
      `brought_into` makes them valid.
    - `facts`: additional facts for the run's store.
    - `command`: the command line, for the record.
    - `patient`: champions are confirmed however long it takes.
    - `alone`: there is one candidate and no ranking, so no sample is taken to tell it from others.
    - `until_s`: the run is interrupted at this time of the system's monotonic clock.
    """

    space: str | None
    device: str = "auto"
    runs_dir: Path = RUNS_DIR
    options: Mapping[str, Json] = field(default_factory=dict)
    strategy: str | StrategyMaker | None = None
    warm_start: RunFolder | None = None
    gpus: GpuRequest | None = None
    cluster: ClusterRequest | None = None
    cases: Sequence[CaseEntry] = ()
    dtype: str = ""
    near: Sequence[Mapping[str, Value]] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    patient: bool = False
    alone: bool = False
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run. `reason`: see `SearchLoop.run`. `undecided`: nothing was confirmed, and for
    some candidate the machine was too noisy to decide whether it is right."""

    run: RunFolder
    reason: str
    ok_trials: int
    undecided: bool = False


def start_run(request: RunRequest, observer: Observer) -> RunResult:
    """Makes a new run and runs it to its end. Everything that can be refused is refused before the
    run has a folder."""
    phases = PhaseTimes()
    secret = secrets.token_hex(8)
    with (
        contextlib.closing(EarlyWorker()) as early,
        connected(request.cluster) as cluster,
    ):
        if request.space is None:
            path = flagship(request.device, looking=early.start)
        else:
            path = find_space(request.space)
        setup = load_setup(
            path,
            request.device,
            left_free=True,
            gpus=request.gpus,
            elsewhere=cluster,
            secret=secret,
            cases=request.cases,
            dtype=request.dtype,
            looking=early.start,
        )
        options = _options(setup, request)
        strategy = request.strategy or options.strategy
        create_strategy(strategy, setup.space, options)  # refuses a strategy that does not fit
        setup.space.size()  # refuses a space without a valid configuration
        if isinstance(setup, KernelSetup):
            _refuse_unfit_numbers(setup)
        described = environment.describe(setup.profile, request.command, setup.languages)
        facts = {
            "space": setup.name,
            "space_file": setup.space_file,
            "environment": described,
            "kind": setup.kind,
            "device": setup.profile.to_json(),
            "problem": dict(setup.problem_facts),
            "settings": options.to_json(),
            "default": setup.space.default().to_json(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": described["command"],
            "state": "running",
            "secret": secret,
            **request.facts,
        }
        if isinstance(setup, KernelSetup) and request.cases:
            facts[GIVEN_CASES] = msgspec.to_builtins(setup.problem_spec.cases)
            if said := skipped_in_words(setup.skipped, len(setup.problem_spec.cases)):
                facts["skipped_cases"] = said
                observer.phase(said)
        with (
            measuring_alone(() if cluster else setup.devices),
            interruptible(),
            _new_run(request.runs_dir, setup, facts) as (run, store),
        ):
            # From here on the run lives on its own copies of the sources.
            own = setup.at(run.sources)
            return _finish(
                *(run, store, own, options, observer, cluster, request.strategy),
                phases=phases,
                early=early,
                patient=request.patient,
                alone=request.alone,
                until_s=request.until_s,
            )


def _refuse_unfit_numbers(setup: KernelSetup) -> None:
    """Raises SpaceError for a number that a kernel cannot get in any configuration, such as
    a fraction where an integer is required. Otherwise the kernel's first trial would end the
    run."""
    default = setup.space.default()
    for kernel in setup.document.kernels:
        one = setup.space.repair({**default, KERNEL: kernel.name}, random.Random(0))
        if one is not None:
            setup.planner.proposal(0, one)


def _options(setup: Setup, request: RunRequest) -> RunOptions:
    """The space's, as the user changed them. Raises UsageError or SpaceError for invalid values."""
    options = setup.options.replaced(_first_look(setup, request)).replaced(request.options)
    if request.strategy is not None:
        options = options.replaced({"strategy": strategy_name(request.strategy)})
    if isinstance(setup, RecordedSetup) and options.speedup is not None:
        raise UsageError(
            "a recorded space has no baseline, so no speedup to reach: stop by trials or minutes"
        )
    if isinstance(setup, RecordedSetup) and "error" in options.objectives:
        raise UsageError("a recorded space holds only times: `objective: error` needs a kernel")
    if request.options.get("lookahead") is None and len(setup.devices) > 1:
        enough = LOOKAHEAD_PER_DEVICE * len(setup.devices)
        options = options.replaced({"lookahead": max(options.lookahead, enough)})
    starts = setup.space.starts()
    if request.warm_start is not None:
        starts = warm_starts(setup.space, starts, request.warm_start)
    if request.near:
        found = (brought_into(setup.space, values) for values in request.near)
        starts = list(dict.fromkeys([*(each for each in found if each is not None), *starts]))
    # Without a wish the strategies begin as they like: random search does not need the default.
    if request.warm_start is not None or request.near or setup.tries_first:
        first = tuple(configuration.to_json() for configuration in starts)
        options = options.replaced({"starts": first})
    return options


_LIMITS: Final = ("trials", "minutes", "compiles", "speedup", "no_improvement")


def _first_look(setup: Setup, request: RunRequest) -> dict[str, Json]:
    """The options of a run whose user named neither a space nor a limit, and should not wait long.
    Champions are confirmed as in any other run."""
    if request.space is not None or any(request.options.get(name) for name in _LIMITS):
        return {}
    return dict(registry.named(setup.profile.backend).first_look)


@contextlib.contextmanager
def _new_run(
    runs_dir: Path, setup: Setup, facts: Mapping[str, Json]
) -> Iterator[tuple[RunFolder, RunStore]]:
    """A new folder with copies of the space's files, locked, and its store. The folder goes again
    when there is nothing in it that could be resumed."""
    run = create_folder(runs_dir, setup.name)
    try:
        snapshot(run, setup.files)
        text = json.dumps(facts["environment"], indent=2) + "\n"
        write_durably(run.environment, text.encode())
        all_facts = {**facts, "sources": fingerprints(run)}
        with run.locked(), RunStore.create(run.store, all_facts) as store:
            yield run, store
    except BaseException as error:
        if not run.store.exists() or _is_mistaken(run, error):
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _is_mistaken(run: RunFolder, error: BaseException) -> bool:
    """Whether a user's mistake was found before the first trial."""
    if not isinstance(error, EvotuneError) or error.exit_code != UsageError.exit_code:
        return False
    with RunStore.open_for_reading(run.store) as store:
        return store.count() == 0


def resume_run(
    run: RunFolder,
    observer: Observer,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    champions: int | None = None,
    strategy: str | StrategyMaker | None = None,
    allow_mixed: bool = False,
    gpus: GpuRequest | None = None,
    cluster: ClusterRequest | None = None,
) -> RunResult:
    """Continues a run, on as many GPUs as are requested now; `trials`, `minutes` and `champions`
    are new totals. Without `minutes`, `champions` are confirmed however long it takes. `strategy`:
    makes the run's strategy, if that is a user's own."""
    phases = PhaseTimes()
    with (
        run.locked(),
        contextlib.closing(EarlyWorker()) as early,
        connected(cluster) as elsewhere,
    ):
        # Whoever closes a writer changes the files, so all refusals come before there is one.
        with RunStore.open_for_reading(run.store) as store:
            options = stored_options(store)
            same_strategy(options.strategy, strategy)
            done = store.count()
            if trials is not None and trials < done:
                raise UsageError(f"run {run.id} has {done} trials already; ask for more than that")
            options = options.replaced(
                {"trials": trials, "minutes": minutes, "champions": champions}
            )
            if done >= options.trials and champions is None:
                observer.phase(f"all {done} trials are done; --trials asks for more")
            setup = load_run_setup(run, store, gpus, elsewhere, looking=early.start)
            if not allow_mixed:
                _require_same_environment(run, store, setup)
        with (
            measuring_alone(() if elsewhere else setup.devices),
            interruptible(),
            RunStore.open_for_writing(run.store, checked=True) as store,
        ):
            store.set_facts({"settings": options.to_json(), "state": "running"})
            patient = champions is not None and minutes is None
            return _finish(
                *(run, store, setup, options, observer, elsewhere, strategy),
                phases=phases,
                early=early,
                patient=patient,
            )


def _require_same_environment(run: RunFolder, store: RunStore, setup: Setup) -> None:
    """Raises EnvironmentProblem if times measured here would not compare with the run's."""
    now = environment.describe(setup.profile, (), setup.languages)
    then = environment.read(run.environment, store.meta("environment"))
    changes = environment.changes(then, now)
    if changes:
        raise EnvironmentProblem(
            f"run {run.id} was made elsewhere ({'; '.join(changes)}): times would not compare; "
            "use --allow-mixed to continue anyway"
        )


def stored_options(store: RunStore) -> RunOptions:
    """The run's options, read from its store. Raises StoreError if they are damaged."""
    with store.trusting_facts():
        return RunOptions.from_json(store.meta("settings"))


def _finish(  # noqa: PLR0917
    run: RunFolder,
    store: RunStore,
    setup: Setup,
    options: RunOptions,
    observer: Observer,
    cluster: Cluster | None,
    strategy: str | StrategyMaker | None,
    *,
    phases: PhaseTimes,
    early: EarlyWorker,
    patient: bool = False,
    alone: bool = False,
    until_s: float = math.inf,
) -> RunResult:
    signals = StopSignal(until_s)
    kind: KindOfRun
    if isinstance(setup, RecordedSetup):
        kind = RecordedRun(setup)
    else:
        kind = KernelRun(
            run,
            store,
            setup,
            options=options,
            observer=observer,
            cluster=cluster,
            phases=phases,
            early=early,
            patient=patient,
            alone=alone,
            stop=lambda: signals.requested,
        )
    work = RunWork(
        *(run, store, kind),
        options=options,
        observer=observer,
        strategy=strategy,
        phases=phases,
        signals=signals,
        patient=patient,
        finish_s=FINISH_S if math.isinf(until_s) else 0.0,
    )
    reason = work.run_to_end()
    return RunResult(run, reason, store.count_ok(), is_undecided(store))


def is_undecided(store: RunStore) -> bool:
    """Whether noise alone kept the run from a champion."""
    confirmed = store.confirmations().values()
    if any(outcome.ok for outcome in confirmed):
        return False
    in_search = not store.count_ok() and store.kinds().get(OutcomeKind.UNDECIDED, 0) > 0
    return in_search or any(outcome.undecided for outcome in confirmed)


# One part of a run, from its start or its resumption to its end: search, then confirmation.
#
# Needs the run's lock and its open store.
_SEARCH_SHARE = 0.7
"""Share of a run's minutes that the search gets. The rest is for confirming champions, and the
first of them is confirmed however long it takes."""


class KindOfRun(Protocol):
    """The kind of a run, which says how its trials get their outcomes: `KernelRun` measures them,
    `RecordedRun` looks them up."""

    @property
    def setup(self) -> Setup: ...

    @property
    def confirms(self) -> bool:
        """Whether champions are to be confirmed after the search."""

    def open_executor(self, first: Sequence[Configuration] = ()) -> Executor:
        """Opens the executor of the run. `first`: the search's first proposals, if they are
        known."""

    def proposal(self, number: int, configuration: Configuration) -> Proposal: ...

    def expect_finalists(self, executor: Executor) -> None:
        """Prepares what the finalists will need, because the search will end soon."""

    def confirmed(
        self, executor: Executor, *, stop: Callable[[], bool], no_time: Callable[[], bool]
    ) -> Iterator[tuple[Trial, Outcome]]:
        """Confirms the finalists, and yields each with its outcome. If `no_time` returns True, no
        more candidates are confirmed once one has passed."""


class RunWork:
    """Runs the search and then the confirmation. Whatever happens, the store has the run's state
    afterwards."""

    def __init__(
        self,
        run: RunFolder,
        store: RunStore,
        kind: KindOfRun,
        *,
        options: RunOptions,
        observer: Observer,
        phases: PhaseTimes,
        signals: StopSignal,
        strategy: str | StrategyMaker | None = None,
        patient: bool = False,
        finish_s: float = FINISH_S,
    ) -> None:
        """`strategy`: of a user's own, which the options hold by name alone. `patient`: champions
        are confirmed even when the run's minutes are over. `finish_s`: see `SearchLoop`."""
        self._phases = phases
        with store.trusting_facts():
            earlier = store.meta(PHASES, {}).items()
            self._phases_before = {str(phase): float(spent_s) for phase, spent_s in earlier}
        self.run = run
        self.store = store
        self._kind = kind
        self._options = options
        self._observer = observer
        self._strategy = strategy
        self._patient = patient
        self._finish_s = finish_s
        self._signals = signals
        self._began_s = time.monotonic() - store.elapsed_s()  # as if the run had one part

    def run_to_end(self) -> str:
        """Searches and confirms, and returns why the search ended; see `SearchLoop.run`."""
        with self._signals:
            executor: Executor | None = None
            reason = "interrupted"
            self._observer.started(self._info())
            try:
                named = same_strategy(self._options.strategy, self._strategy)
                strategy = create_strategy(named, self._kind.setup.space, self._options)
                first: list[Configuration] = []
                if not self.store.count() and isinstance(named, str):
                    first = first_asked(strategy, self._options)
                executor = self._kind.open_executor(first)
                ended = self._search(executor, strategy)
                if ended != "interrupted" and self._kind.confirms and self.store.count_ok():
                    executor.drop()
                    self._confirm(executor)
                if not self._signals.requested:
                    reason = ended
            except KeyboardInterrupt:
                reason = "interrupted"
            except StoreError:  # nothing more is written into a damaged store
                reason = ""
                raise
            finally:
                if executor is not None:
                    self._phases.enter(CLOSING)
                    executor.close()
                finished = reason != "interrupted"
                if reason:
                    state = f"finished:{reason}" if finished else reason
                    self.store.set_facts({"state": state, **self._time_around_search()})
        self._observer.finished(reason, self.store.elapsed_s())
        return reason

    @property
    def _elapsed_s(self) -> float:
        """Time at work over all parts of the run."""
        return time.monotonic() - self._began_s

    def _time_around_search(self) -> dict[str, Json]:
        """The facts about time, as of now; `RunStore.elapsed_s` needs the first one."""
        return {
            AROUND_SEARCH: self._elapsed_s - self.store.searched_s(),
            PHASES: self._phases.added_to(self._phases_before),
        }

    def _search(self, executor: Executor, strategy: Strategy) -> str:
        options = self._options
        seconds = options.seconds
        if seconds is not None and self._kind.confirms:
            seconds *= _SEARCH_SHARE
        loop = SearchLoop(
            self.store,
            strategy,
            executor,
            self._kind.proposal,
            options=options,
            seconds=seconds,
            searched_s=self.store.searched_s(),
            stop=lambda: self._signals.requested,
            observer=self._observer,
            quarantined=self.run.quarantine,
            late=lambda: self._kind.expect_finalists(executor),
            finish_s=self._finish_s,
        )
        self.store.set_facts(self._time_around_search())
        self._observer.phase("searching")
        self._phases.enter(SEARCHING)
        self._signals.tidy = True
        return loop.run()

    def _confirm(self, executor: Executor) -> None:
        self._observer.phase(f"{CONFIRMING} the best in fresh processes")
        for trial, outcome in self._kind.confirmed(
            executor, stop=lambda: self._signals.requested, no_time=self._is_over_time
        ):
            self.store.confirm(trial.number, outcome, self._elapsed_s)
            self.store.set_facts(self._time_around_search())
            self._observer.confirmed(trial, outcome)

    def _is_over_time(self) -> bool:
        """Whether no more than the necessary is timed."""
        if self._signals.is_near:
            return True
        seconds = self._options.seconds
        return seconds is not None and self._elapsed_s > seconds and not self._patient

    def _info(self) -> RunInfo:
        setup, options = self._kind.setup, self._options
        return RunInfo(
            id=self.run.id,
            path=str(self.run.path),
            space=setup.name,
            device=setup.profile.name,
            strategy=options.strategy,
            seed=options.seed,
            population=options.population,
            trials=options.trials,
            minutes=options.minutes,
            already_done=self.store.count(),
            champions=options.champions if self._kind.confirms else 0,
            elapsed_s=self.store.elapsed_s(),
        )
