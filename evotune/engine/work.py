"""One session of a run: baselines, search, confirmation. Needs the run's lock and store."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from evotune.backends import registry
from evotune.backends.beside import others_at_work
from evotune.counted import counted
from evotune.engine import champions
from evotune.engine.calibration import calibrate
from evotune.engine.folder import RunFolder
from evotune.engine.observer import Observer, RunInfo
from evotune.engine.planning import Planner
from evotune.engine.quarantine import quarantine
from evotune.engine.search_loop import Budget, SearchLoop
from evotune.engine.settings import stored_settings
from evotune.engine.setup import Setup
from evotune.engine.stop_signal import StopSignal
from evotune.errors import StoreError
from evotune.execute.background import BackgroundExecutor
from evotune.execute.build_cache import writable_cache_dir
from evotune.execute.in_flight import speaks_for_its_code
from evotune.execute.inline import InlineExecutor
from evotune.execute.local import LocalExecutor, open_local_executor
from evotune.execute.protocol import (
    HELD_OUT,
    TIMED,
    BaselineReport,
    BaselineTiming,
    Executor,
    Proposal,
)
from evotune.execute.twins import Twin, Twins
from evotune.measure.agreement import agreement
from evotune.objectives import SINGLE
from evotune.problems import Case
from evotune.search.catalog import create_strategy, same_strategy
from evotune.search.strategy import SearchSettings
from evotune.space.document import SpaceDocument
from evotune.store import AROUND_SEARCH, RunStore
from evotune.trial import Configuration, Json, Trial

if TYPE_CHECKING:
    from evotune.engine.cluster import Cluster
    from evotune.search.own import StrategyMaker


_SEARCH_SHARE = 0.7
"""Of a run's minutes: the rest is for confirming champions, which takes as long as it takes for the
first of them."""


def search_settings(settings: Json) -> SearchSettings:
    """From the run's stored settings."""
    return SearchSettings(
        seed=settings["seed"],
        population=settings["population"],
        elites=settings["elites"],
        lookahead=settings["lookahead"],
        # Runs from before there were several have none of them.
        objectives=tuple(settings.get("objectives", SINGLE)),
    )


def open_kernel_executor(
    setup: Setup,
    folder: Path,
    twins: Twins | None = None,
    cores: Sequence[Sequence[int]] = (),
) -> LocalExecutor:
    """For a space of kernels; its children write their logs under `folder`. `cores` binds the
    worker of each device to its own CPU cores."""
    document = setup.document
    assert document is not None
    assert document.problem is not None
    return open_local_executor(
        folder=folder,
        cache=writable_cache_dir(),
        profiles=setup.devices,
        problem=document.problem.name,
        dtype=document.problem.dtype,
        root=document.root.absolute(),
        deterministic=document.deterministic,
        compile_timeout_s=document.timeouts.compile_s,
        trial_timeout_s=document.timeouts.trial_s,
        cores=cores,
        twins=twins,
        secret=setup.secret,
    )


class RunWork:
    """Searches, then confirms; leaves the run's state in the store whatever happens."""

    def __init__(
        self,
        run: RunFolder,
        store: RunStore,
        setup: Setup,
        observer: Observer,
        cluster: Cluster | None = None,
        *,
        strategy: str | StrategyMaker | None = None,
    ) -> None:
        """`strategy`: of a user's own, which the store holds by name alone."""
        self.run = run
        self.store = store
        self._setup = setup
        self._cluster = cluster
        self._strategy = strategy
        self._observer = observer
        self._signals = StopSignal()
        self._began_s = time.monotonic() - store.elapsed_s()  # had it been one session

    def run_to_end(self) -> str:
        """Why it ended, as `SearchLoop.run` has it."""
        with self._signals:
            executor: Executor | None = None
            reason = "interrupted"
            self._observer.started(self._info(stored_settings(self.store)))
            try:
                executor, propose = self._open_executor()
                reason = self._search(executor, propose)
                if reason != "interrupted" and self._setup.planner is not None:
                    executor.drop()
                    self._confirm(executor)
                if self._signals.requested:
                    reason = "interrupted"
            except KeyboardInterrupt:
                reason = "interrupted"
            except StoreError:  # nothing more is written into a damaged store
                reason = ""
                raise
            finally:
                if executor is not None:
                    executor.close()
                finished = reason != "interrupted"
                if reason:
                    state = f"finished:{reason}" if finished else reason
                    self.store.set_facts({"state": state, **self._time_around_search()})
        self._observer.finished(reason, self.store.elapsed_s())
        return reason

    @property
    def _elapsed_s(self) -> float:
        """Time at work over all sessions."""
        return time.monotonic() - self._began_s

    def _time_around_search(self) -> dict[str, Json]:
        """The fact that `RunStore.elapsed_s` needs, as of now."""
        return {AROUND_SEARCH: self._elapsed_s - self.store.searched_s()}

    def _open_executor(self) -> tuple[Executor, Callable[[int, Configuration], Proposal]]:
        setup = self._setup
        if setup.recording is not None:
            return InlineExecutor(setup.recording.outcome, setup.delay_ms / 1000), Proposal
        document, planner = setup.document, setup.planner
        assert document is not None
        assert planner is not None
        self._look_around()
        if self._cluster is not None:
            return self._open_cluster(self._cluster, document), planner.proposal
        executor = open_kernel_executor(setup, self.run.logs, Twins(self._stored_twin))
        try:
            executor.fixed_sampling = not stored_settings(self.store)["racing"]
            elsewhere = setup.devices[0].name != self.store.meta("device")["name"]
            executor.name_devices |= elsewhere
            executor.open_devices()
            executor.baselines = self._baselines(
                document, lambda: executor.time_baselines(self._measured_cases())
            )
            if len(setup.devices) > 1 or self.store.meta("devices"):
                self._calibrate(executor, planner)
        except BaseException:
            executor.close()
            raise
        return BackgroundExecutor(executor), planner.proposal

    def _look_around(self) -> None:
        """Names what else works on this machine; the record has it by the trials stored before."""
        found = others_at_work(self._setup.devices)
        if found:
            self._observer.phase(f"times may suffer: {'; '.join(found)}")
            known = self.store.meta("beside", {})
            self.store.set_meta("beside", {**known, str(self.store.count()): found})

    def _calibrate(self, executor: LocalExecutor, planner: Planner) -> None:
        """Every device of this session against the same baselines and configuration; kept in the
        run by the device's id."""
        self._observer.phase(f"calibrating {counted(len(executor.devices), 'device')}")
        reference = planner.proposal(0, self._setup.space.default())
        cases = self._setup.cases[TIMED]
        found = calibrate(executor, reference, cases)
        self._keep_calibration(found)

    def _keep_calibration(self, found: Sequence[Mapping[str, Json]]) -> None:
        known = {entry["id"]: entry for entry in self.store.meta("devices", [])}
        known |= {entry["id"]: entry for entry in found}
        self.store.set_meta("devices", list(known.values()))
        self._observer.phase(agreement(list(known.values())))

    def _stored_twin(self, binary: str) -> Twin | None:
        """The first stored outcome that says something about this machine code and launch.

        From the executor's thread, which the store's own connection is not for.
        """
        with RunStore.open_for_reading(self.store.path, checked=True) as store:
            for trial in store.with_binary(binary):
                if speaks_for_its_code(trial.outcome):
                    return trial.number, trial.outcome
        return None

    def _open_cluster(self, cluster: Cluster, document: SpaceDocument) -> Executor:
        self._observer.phase(
            f"opening {counted(len(self._setup.devices), 'worker')} of the cluster"
        )
        executor, calibrated = cluster.executor(
            self.run,
            self._setup,
            str(self.store.meta("space_file")),
            fixed_sampling=not stored_settings(self.store)["racing"],
            twins=Twins(self._stored_twin),
            choose=lambda time_baselines: self._baselines(document, time_baselines),
        )
        self._keep_calibration(calibrated)
        return executor

    def _measured_cases(self) -> list[Case]:
        return [*self._setup.cases[TIMED], *self._setup.cases[HELD_OUT]]

    def _baselines(
        self, document: SpaceDocument, time_baselines: Callable[[], BaselineReport]
    ) -> dict[str, str]:
        """The baseline of every measured case: chosen once in a run, by time, and kept."""
        stored = self.store.meta("baselines")
        if stored is not None:
            with self.store.trusting_facts():
                chosen = {str(case): str(name) for case, name in stored["chosen"].items()}
            self._observer.phase(_in_words(chosen))
            return chosen
        self._observer.phase("timing the baselines")
        found = time_baselines()
        chosen = {
            case.label: _choose(document, case, found.timings) for case in self._measured_cases()
        }
        record = {
            "timings": msgspec.to_builtins(found.timings),
            "chosen": chosen,
            "copy_gbps": found.copy_gbps,
        }
        self.store.set_meta("baselines", record)
        self._observer.phase(_in_words(chosen))
        return chosen

    def _search(self, executor: Executor, propose: Callable[[int, Configuration], Proposal]) -> str:
        settings = stored_settings(self.store)
        chosen = search_settings(settings)
        seconds = self._seconds()
        if seconds is not None and self._confirms():
            seconds *= _SEARCH_SHARE
        loop = SearchLoop(
            self.store,
            create_strategy(
                same_strategy(settings["strategy"], self._strategy), self._setup.space, chosen
            ),
            executor,
            propose,
            lookahead=chosen.lookahead,
            budget=Budget(
                settings["trials"],
                seconds,
                settings["compiles"],
                math.log(speedup) if (speedup := settings["speedup"]) is not None else None,
                settings["no_improvement"],
            ),
            searched_s=self.store.searched_s(),
            starts=[Configuration(values) for values in settings["starts"]],
            stop=lambda: self._signals.requested,
            observer=self._observer,
            quarantine=functools.partial(quarantine, self.run),
        )
        self.store.set_facts(self._time_around_search())
        self._observer.phase("searching")
        self._signals.tidy = True
        return loop.run()

    def _seconds(self) -> float | None:
        """Of the whole run, as asked for."""
        minutes = stored_settings(self.store)["minutes"]
        return None if minutes is None else minutes * 60

    def _confirms(self) -> bool:
        return self._setup.planner is not None and stored_settings(self.store)["champions"] > 0

    def _is_over_time(self) -> bool:
        seconds = self._seconds()
        return seconds is not None and self._elapsed_s > seconds

    def _info(self, settings: Json) -> RunInfo:
        return RunInfo(
            id=self.run.id,
            path=str(self.run.path),
            space=self._setup.name,
            device=self._setup.profile.name,
            strategy=settings["strategy"],
            seed=settings["seed"],
            population=settings["population"],
            trials=settings["trials"],
            minutes=settings["minutes"],
            already_done=self.store.count(),
            champions=settings["champions"] if self._setup.planner is not None else 0,
            elapsed_s=self.store.elapsed_s(),
        )

    def _confirm(self, executor: Executor) -> None:
        """Confirms finalists that were not confirmed before. An interruption loses only these."""
        planner = self._setup.planner
        assert planner is not None
        self._observer.phase("confirming the best in fresh processes")
        known = self.store.confirmations()
        # Champions of one model meet on one device.
        models = [device.name for device in self._setup.devices]
        own = str(self.store.meta("device")["name"])
        for model in dict.fromkeys(models):

            def propose(trial: Trial, device: int = models.index(model)) -> Proposal:
                made = planner.proposal(trial.number, trial.configuration, confirm=True)
                return dataclasses.replace(made, device=device)

            for trial, outcome in champions.confirm(
                executor,
                (
                    trial
                    for trial in champions.finalists(self.store)
                    if (trial.outcome.device_model or own) == model
                ),
                known=known,
                count=stored_settings(self.store)["champions"],
                propose=propose,
                stop=lambda: self._signals.requested,
                least_width=registry.named(self._setup.profile.backend).least_half_width,
                no_time=self._is_over_time,
            ):
                self.store.confirm(trial.number, outcome, self._elapsed_s)
                self.store.set_facts(self._time_around_search())
                self._observer.confirmed(trial, outcome)


def _in_words(chosen: Mapping[str, str]) -> str:
    return "baselines: " + ", ".join(f"{name} for {case}" for case, name in chosen.items())


def _choose(document: SpaceDocument, case: Case, timings: Sequence[BaselineTiming]) -> str:
    """`family:best` is the fastest of the family that passes the gate itself."""
    usable = [t for t in timings if t.case == case.label and t.passed]
    family, _, member = document.baseline.partition(":")
    if member == "best":
        usable = [t for t in usable if t.name.startswith(f"{family}:")]
    else:
        usable = [t for t in usable if t.name == document.baseline]
    if not usable:
        names = sorted({t.name for t in timings if t.case == case.label and t.passed})
        raise document.baseline_position.error(
            f"no baseline {document.baseline!r} for {case.label} on this device; "
            f"it has {', '.join(names) or 'none that fits its memory and is correct'}"
        )
    return min(usable, key=lambda t: t.time_us).name
