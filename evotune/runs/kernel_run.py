"""The two kinds of runs: one that compiles and measures kernels, and one that looks up a
recording."""

from __future__ import annotations

import dataclasses
import heapq
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from evotune.backends import registry
from evotune.backends.registry import in_part, others_at_work, sharing
from evotune.problems import Case
from evotune.problems.libraries import LIBRARIES, asked
from evotune.run_options import RunOptions
from evotune.runs import confirming
from evotune.runs.confirming import ConfirmingTime
from evotune.runs.folder import RunFolder
from evotune.runs.kernel_executor import calibrate, chosen_baseline, open_kernel_executor
from evotune.runs.observer import BASELINES, OPENING, OTHER_WORK, WARNING, Observer, PhaseTimes
from evotune.runs.setup import KernelSetup, RecordedSetup
from evotune.store import UNCONFIRMED, RunStore
from evotune.store.facts import Baselines, TimedBaseline, read_facts, stored
from evotune.timing.processes import agreement
from evotune.trial import Calibration, Configuration, Outcome, Trial
from evotune.util.words import counted
from evotune.workers.early_worker import EarlyWorker
from evotune.workers.executor import (
    HELD_OUT,
    TIMED,
    BaselineReport,
    Executor,
    Proposal,
)
from evotune.workers.in_flight import Twin, Twins, speaks_for_its_code
from evotune.workers.local import BackgroundExecutor, LocalExecutor

if TYPE_CHECKING:
    from evotune.runs.cluster_run import Cluster

_LOOK_S = 1.0
_LOOK_SHARE = 50
"""Evotune looks for likely champions once a second, or, if a look takes long, once in 50 times that
long."""


class KernelRun:
    """A run that measures on devices of this machine, or on those of a `cluster`.

    The run's store gets the chosen baselines, the calibration of the devices, and other work found
    on the machine.
    """

    def __init__(
        self,
        run: RunFolder,
        store: RunStore,
        setup: KernelSetup,
        *,
        options: RunOptions,
        observer: Observer,
        cluster: Cluster | None,
        phases: PhaseTimes | None = None,
        early: EarlyWorker | None = None,
        patient: bool = False,
        alone: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`patient`, `alone`: see `RunRequest`. `early` may become the worker of the device. `stop`
        ends the timing of the baselines."""
        self._early = early
        self._phases = phases or PhaseTimes()
        self.setup = setup
        self._run = run
        self._store = store
        self._options = options
        self._observer = observer
        self._cluster = cluster
        self._patient = patient
        self._stop = stop
        self._contender = math.inf if alone else -math.inf
        self._checks_at_once = 0
        self._plans = PlansAhead(self._plan)
        self._expected: list[int] = []  # trials whose plans are made ahead
        self._compiled_ahead: set[int] = set()
        self._look_again_s = 0.0

    @property
    def confirms(self) -> bool:
        """Whether champions are to be confirmed after the search."""
        return self._options.champions > 0

    def proposal(self, number: int, configuration: Configuration) -> Proposal:
        return self.setup.planner.proposal(number, configuration)

    def open_executor(self, first: Sequence[Configuration] = ()) -> Executor:
        """Opens the devices, times the baselines or reads their times from the store, and
        calibrates the devices if there are several. For a single device it compiles the `first`
        configurations meanwhile, if that disturbs no measurement."""
        self._name_other_work()
        if self._cluster is not None:
            return self._open_on_cluster(self._cluster)
        setup = self.setup
        executor = open_kernel_executor(
            setup, self._run.logs, Twins(self._stored_twin), early=self._early
        )
        try:
            executor.fixed_sampling = not self._options.racing
            executor.set_contender(self._contender)
            elsewhere = setup.devices[0].name != read_facts(self._store).device.name
            executor.name_devices |= elsewhere
            executor.open_devices()
            self._checks_at_once = executor.checks_at_once
            if len(setup.devices) == 1 and not registry.named(setup.profile.backend).exclusive:
                for number, configuration in enumerate(first):
                    jobs = self.proposal(number, configuration).compile_jobs
                    executor.compile_ahead(jobs.values())
            executor.baselines = self._baselines(
                lambda: executor.time_baselines(
                    self._measured_cases(), asked(setup.document.baseline), stop=self._stop
                )
            )
            if len(setup.devices) > 1 or self._store.meta("devices"):
                self._calibrate(executor)
            if self.confirms:
                executor.expect_champions()
        except BaseException:
            executor.close()
            raise
        return BackgroundExecutor(executor)

    def expect_finalists(self, executor: Executor) -> None:
        """Plans and compiles the best trials so far, if that disturbs no measurement."""
        backend = registry.named(self.setup.profile.backend)
        if backend.exclusive or not self.confirms or not isinstance(executor, BackgroundExecutor):
            return
        looked_s = time.monotonic()
        if looked_s < self._look_again_s:
            return
        count = self._options.champions
        best = list(islice(confirming.finalists(self._store, confirming.Earlier(), count), count))
        if (numbers := [trial.number for trial in best]) != self._expected:
            self._expected = numbers
            self._plans.expect(best)
        for made in self._plans.made():
            if made.number not in self._compiled_ahead:
                self._compiled_ahead.add(made.number)
                executor.compile_ahead(made.compile_jobs.values())
        spent_s = time.monotonic() - looked_s
        self._look_again_s = looked_s + max(_LOOK_S, _LOOK_SHARE * spent_s)

    def _plan(self, trial: Trial) -> Proposal:
        return self.setup.planner.proposal(trial.number, trial.configuration, confirm=True)

    def confirmed(
        self, executor: Executor, *, stop: Callable[[], bool], no_time: Callable[[], bool]
    ) -> Iterator[tuple[Trial, Outcome]]:
        """Confirms the finalists that were not confirmed before, or whose confirmation ended
        undecided. An interruption loses only the confirmation under way."""
        known = {n: o for n, o in self._store.confirmations().items() if not o.undecided}
        earlier = self._confirmed_earlier(known)
        # Champions of one model meet on one device.
        models = [device.name for device in self.setup.devices]
        own = read_facts(self._store).device.name
        wanted = self._options.champions * len(set(models))
        limit = ConfirmingTime.after(self._store.searched_s(), wanted)
        if self._patient:
            limit = ConfirmingTime()
        self._store.set_meta(UNCONFIRMED, "")
        for model in dict.fromkeys(models):

            def of_model(trial: Trial, model: str = model) -> bool:
                return (trial.outcome.device_model or own) == model

            def propose(trial: Trial, device: int = models.index(model)) -> Proposal:
                return dataclasses.replace(self._plans.of(trial), device=device)

            here = {t.number for t in self._store.trials_of(earlier.outcomes) if of_model(t)}
            before = confirming.Earlier(
                earlier.trials, {n: earlier.outcomes[n] for n in sorted(here)}
            )
            count = self._options.champions
            yield from confirming.confirm(
                executor,
                filter(of_model, confirming.finalists(self._store, before, count)),
                known=known,
                count=count,
                propose=propose,
                stop=stop,
                leader=before.leader(),
                least_width=registry.named(self.setup.profile.backend).least_half_width,
                no_time=no_time,
                time=limit,
                contender=self._contender,
                checks_at_once=self._checks_at_once,
                tell=self._observer.step,
                give_up=self._give_up,
                enter=self._phases.enter,
            )

    def _give_up(self, why: str) -> None:
        self._store.set_meta(UNCONFIRMED, why)
        self._observer.phase(why)

    def _confirmed_earlier(self, known: Mapping[int, Outcome]) -> confirming.Earlier:
        """The confirmations from when the run had fewer trials. They are kept by the number of
        trials, so that a session that continues an interrupted confirmation uses the same order."""
        trials = self._store.count()
        with self._store.trusting_facts():
            fact = self._store.meta("confirming")
            if fact is None:  # nothing is confirmed, or an older evotune did
                fact = {"trials": trials, "before": 0, "earlier": []}
            elif fact["trials"] != trials:
                fact = {"trials": trials, "before": fact["trials"], "earlier": sorted(known)}
            of_before = {n: known[n] for n in fact["earlier"] if n in known}
            earlier = confirming.Earlier(fact["before"], of_before)
        self._store.set_meta("confirming", fact)
        return earlier

    def _name_other_work(self) -> None:
        """Reports other work on this machine, and records it under the number of trials stored
        before. Says how many threads are measured if the machine has more."""
        if self._cluster is None and (said := in_part(self.setup.profile)):
            self._observer.phase(said)
        found = others_at_work(self.setup.devices)
        if found:
            advice = sharing(self.setup.profile) if self._cluster is None else ""
            self._observer.phase(f"{OTHER_WORK}: {'; '.join(filter(None, (*found, advice)))}")
            with self._store.trusting_facts():
                known = read_facts(self._store).beside
            self._store.set_meta("beside", stored({**known, self._store.count(): found}))

    def _open_on_cluster(self, cluster: Cluster) -> Executor:
        self._observer.phase(f"opening {counted(len(self.setup.devices), 'worker')} of the cluster")
        workers = cluster.workers_of(self._run, self.setup, fixed_sampling=not self._options.racing)
        baselines = self._baselines(workers.time_baselines)
        executor, calibrated = workers.executor(baselines, Twins(self._stored_twin))
        self._keep_calibration(calibrated)
        return executor

    def _calibrate(self, executor: LocalExecutor) -> None:
        """Every device against the same baselines and configuration."""
        self._observer.phase(f"calibrating {counted(len(executor.devices), 'device')}")
        reference = self.proposal(0, self.setup.space.default())
        self._keep_calibration(calibrate(executor, reference, self.setup.cases[TIMED]))

    def _keep_calibration(self, found: Sequence[Calibration]) -> None:
        """In the store, by the device's id."""
        with self._store.trusting_facts():
            known = {each.id: each for each in (*read_facts(self._store).devices, *found)}
        self._store.set_meta("devices", stored(list(known.values())))
        self._observer.phase(agreement(list(known.values())))

    def _stored_twin(self, binary: str) -> Twin | None:
        """The first stored outcome that speaks for this machine code and launch.

        The executor's thread calls it, so it opens the store again: the run's own connection
        belongs to the run's thread.
        """
        with RunStore.open_for_reading(self._store.path, checked=True) as store:
            for trial in store.with_binary(binary):
                if speaks_for_its_code(trial.outcome):
                    return trial.number, trial.outcome
        return None

    def _measured_cases(self) -> list[Case]:
        return [*self.setup.cases[TIMED], *self.setup.cases[HELD_OUT]]

    def _baselines(self, time_baselines: Callable[[], BaselineReport]) -> dict[str, str]:
        """The baseline of every measured case: chosen once in a run, by time, and kept."""
        with self._store.trusting_facts():
            chosen = dict(read_facts(self._store).baselines.chosen)
        if chosen:
            self._observer.phase(_in_words(chosen))
            return chosen
        self._observer.phase("timing the baselines")
        self._phases.enter(BASELINES)
        found = time_baselines()
        self._phases.enter(OPENING)
        for warning in found.warnings:
            self._observer.phase(f"{WARNING}{warning}")
        for each in found.timings:
            if each.reason and each.name not in LIBRARIES:
                self._observer.phase(f"a baseline of {each.case} failed: {each.reason}")
        chosen = {
            case.label: chosen_baseline(self.setup.document, case, found.timings)
            for case in self._measured_cases()
        }
        timings = [TimedBaseline(**msgspec.structs.asdict(each)) for each in found.timings]
        self._store.set_meta("baselines", stored(Baselines(timings, chosen, found.copy_gbps)))
        self._observer.phase(_in_words(chosen))
        return chosen


def _in_words(chosen: Mapping[str, str]) -> str:
    return "baselines: " + ", ".join(f"{name} for {case}" for case, name in chosen.items())


# A run on a recorded space, and its executor: every outcome is looked up, none is measured.
class RecordedRun:
    """A run that looks up outcomes of a recorded space, and needs no device."""

    confirms = False

    def __init__(self, setup: RecordedSetup) -> None:
        self.setup = setup

    def open_executor(self, first: Sequence[Configuration] = ()) -> Executor:
        return InlineExecutor(self.setup.recording.outcome, self.setup.delay_ms / 1000)

    def proposal(self, number: int, configuration: Configuration) -> Proposal:
        return Proposal(number, configuration)

    def expect_finalists(self, executor: Executor) -> None:
        """Does nothing: a recorded trial is not confirmed."""

    def confirmed(
        self, executor: Executor, *, stop: Callable[[], bool], no_time: Callable[[], bool]
    ) -> Iterator[tuple[Trial, Outcome]]:
        """Yields nothing: a recording cannot be measured again."""
        return iter(())


class InlineExecutor:
    """An executor whose trials take virtual time: `duration_s` each, on `devices` devices at once.
    `poll` returns the trial that finishes next. `delay_s` is a real pause after each trial, so that
    a run can be watched or stopped half-way.
    """

    def __init__(
        self,
        outcome_of: Callable[[Configuration], Outcome],
        delay_s: float = 0.0,
        *,
        devices: int = 1,
        duration_s: Callable[[Proposal], float] = lambda proposal: 1.0,
    ) -> None:
        self._outcome_of = outcome_of
        self._delay_s = delay_s
        self._duration_s = duration_s
        self._free_s = [0.0] * devices  # when each device is free again
        self._running: list[tuple[float, int, Proposal]] = []
        self.now_s = 0.0
        """Virtual time: when the last trial that was polled finished."""

    @property
    def step(self) -> str:
        """Always "": a recorded trial takes no time, so it has no steps."""
        return ""

    def submit(self, proposal: Proposal) -> None:
        finish_s = max(self.now_s, self._free_s[0]) + self._duration_s(proposal)
        heapq.heapreplace(self._free_s, finish_s)
        heapq.heappush(self._running, (finish_s, proposal.number, proposal))

    def set_contender(self, fitness: float) -> None:
        """Does nothing: recorded outcomes take no samples."""

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        if not self._running:
            return []
        if self._delay_s:
            time.sleep(self._delay_s)
        self.now_s, number, proposal = heapq.heappop(self._running)
        return [(number, self._outcome_of(proposal.configuration))]

    def drop(self) -> None:
        self._running.clear()

    def close(self) -> None:
        self._running.clear()


# Plans likely champions in a thread of its own while the search ends.
#
# A champion's proposal has hundreds of cases, of which each is drawn and planned: that takes
# seconds.
_SWITCH_S = 0.0005
"""Threads take turns this often while one plans: the executor's must not keep devices waiting."""


class PlansAhead:
    """Makes proposals ahead of their use, each once. `plan` must return equal proposals for equal
    trials, and may be called in any thread."""

    def __init__(self, plan: Callable[[Trial], Proposal]) -> None:
        self._plan = plan
        self._made: dict[int, Proposal] = {}
        self._planning = threading.Lock()
        self._wanted: frozenset[int] = frozenset()

    def expect(self, trials: Iterable[Trial]) -> None:
        """Starts to plan the given trials, in this order, and drops the plans of trials that are no
        longer among them.
        """
        trials = list(trials)
        self._wanted = frozenset(trial.number for trial in trials)
        if self._wanted - self._made.keys():
            # A process that ends does not wait for it.
            threading.Thread(target=self._work, args=(trials,), daemon=True).start()

    def _work(self, trials: Iterable[Trial]) -> None:
        usual_s = sys.getswitchinterval()
        for trial in trials:
            with self._planning:
                sys.setswitchinterval(min(usual_s, _SWITCH_S))
                try:
                    if trial.number in self._wanted and trial.number not in self._made:
                        self._made[trial.number] = self._plan(trial)
                except Exception:  # noqa: BLE001 (whoever asks for it plans it again, and meets it)
                    return
                finally:
                    sys.setswitchinterval(usual_s)

    def made(self) -> list[Proposal]:
        """The proposals that are planned by now. Does not wait for others."""
        return list(self._made.values())

    def of(self, trial: Trial) -> Proposal:
        """The proposal of a trial. Waits if it is being planned. Raises what `plan` raises."""
        with self._planning:
            if trial.number not in self._made:
                self._made[trial.number] = self._plan(trial)
            return self._made[trial.number]
