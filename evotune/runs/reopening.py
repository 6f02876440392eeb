"""Compiles and launches a finished run's configurations again, for `verify` and `compare
--remeasure`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evotune.backends.base.launch import DeviceProfile
from evotune.backends.registry import measuring_alone
from evotune.errors import UsageError
from evotune.runs.confirming import outcome_of, repeated
from evotune.runs.folder import RunFolder
from evotune.runs.kernel_executor import open_kernel_executor
from evotune.runs.planning import Planner
from evotune.runs.setup import KernelSetup, load_run_setup
from evotune.space.bound import BoundSpace
from evotune.space.specs import GivenCase
from evotune.store import RunStore
from evotune.store.facts import read_facts
from evotune.trial import Configuration, Json, Outcome, Value
from evotune.util.files import scratch_folder
from evotune.util.processes import interruptible
from evotune.util.words import did_you_mean
from evotune.workers.executor import TIMED, CaseJob, Proposal
from evotune.workers.local import LocalExecutor

_MOST_SHOWN = 8  # values that a message lists


class _AsRecorded:
    """The device of a run, as its store describes it."""

    allow_mixed = True

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile

    def devices(self, backend: str) -> list[DeviceProfile]:
        return [self._profile]


@dataclass(frozen=True, slots=True)
class ReopenedRun:
    """A run of kernels that is ready to compile and launch configurations of its space."""

    run: RunFolder
    setup: KernelSetup
    baselines: Mapping[str, str]
    numbers: Mapping[Configuration, int]
    """The number of the first trial of each configuration that was tried."""
    away: str = ""
    """Why measurements made here would not be comparable with the run's; "" if they would."""

    @classmethod
    def load(cls, run: RunFolder, *, anywhere: bool = False) -> ReopenedRun:
        """Opens a run again. Raises UsageError if it has no kernel, or ended before its first
        trial. With `anywhere` its device may be absent: then the run can be compiled but not
        measured.
        """
        with RunStore.open_for_reading(run.store) as store:
            with store.trusting_facts():
                facts = read_facts(store)
            if facts.kind == "recorded":
                raise UsageError(f"run {run.id} replays a recording: there is no kernel in it")
            if store.meta("baselines") is None:
                raise UsageError(f"run {run.id} ended before its first trial: nothing was tried")
            recorded = None
            if anywhere:
                recorded = _AsRecorded(facts.device)
            setup = load_run_setup(run, store, elsewhere=recorded)
            assert isinstance(setup, KernelSetup), "its store says so"
            numbers: dict[Configuration, int] = {}
            models = {facts.device.name}  # more of them in a mixed run
            for trial in store.trials():
                numbers.setdefault(trial.configuration, trial.number)
                models |= {trial.outcome.device_model} - {""}
        here, made_on = setup.profile.name, ", ".join(sorted(models))
        away = "" if here in models else f"run {run.id} was made on {made_on}, and this is {here}"
        return cls(run, setup, dict(facts.baselines.chosen), numbers, away)

    def with_cases(self, cases: Sequence[GivenCase]) -> ReopenedRun:
        """A copy of the run that can compile and launch its configurations on other cases than
        those it was tuned for.
        """
        with RunStore.open_for_reading(self.run.store) as store:
            setup = load_run_setup(
                self.run, store, elsewhere=_AsRecorded(self.setup.profile), cases=cases
            )
        assert isinstance(setup, KernelSetup), "as it was before"
        setup = dataclasses.replace(setup, devices=self.setup.devices)
        return dataclasses.replace(self, setup=setup)

    @property
    def space(self) -> BoundSpace:
        return self.setup.space

    @property
    def planner(self) -> Planner:
        return self.setup.planner

    def seed_of(self, configuration: Configuration) -> int:
        """The seed of a configuration's inputs: the number of its first trial, or a new number if
        it was not tried."""
        return self.numbers.get(configuration, len(self.numbers))

    def rival_jobs(self, configuration: Configuration) -> tuple[CaseJob, ...]:
        """The timed cases of a configuration against which others are timed."""
        proposal = self.planner.proposal(0, configuration)
        if proposal.rejection:
            raise UsageError(f"the configuration cannot run here: {proposal.rejection}")
        return tuple(job for job in proposal.cases if job.role == TIMED)

    @contextlib.contextmanager
    def executor(self) -> Iterator[LocalExecutor]:
        """An executor that has the device alone. Its children write into a folder that is deleted
        afterwards."""
        with (
            measuring_alone(self.setup.devices),
            interruptible(),
            scratch_folder() as folder,
        ):
            executor = open_kernel_executor(self.setup, folder)
            executor.baselines = self.baselines
            try:
                yield executor
            finally:
                executor.close()

    def configuration(self, values: Mapping[str, Json]) -> Configuration:
        """`values` as a configuration of the space. Raises UsageError if they are not one."""
        return _member(self.setup.name, self.space, values)


def against(proposal: Proposal, rival: tuple[CaseJob, ...]) -> Proposal:
    """The proposal timed against `rival`, on the timed cases that both have."""
    known = {job.case.label for job in rival}
    cases = tuple(job for job in proposal.cases if job.role != TIMED or job.case.label in known)
    return dataclasses.replace(proposal, cases=cases, rival=rival)


def _member(name: str, space: BoundSpace, values: Mapping[str, Json]) -> Configuration:
    """One value for every parameter, in the space's order."""
    names = [parameter.name for parameter in space.parameters]
    for given in values:
        if given not in names:
            hint = did_you_mean(str(given), names)
            raise UsageError(f"the configuration has an unknown parameter {given!r}{hint}")
    missing = [wanted for wanted in names if wanted not in values]
    if missing:
        raise UsageError(f"the configuration lacks {', '.join(missing)}")
    for gene in space.genes:
        value: Value = values[gene.name]
        if not any(type(value) is type(known) and value == known for known in gene.values):
            known = ", ".join(map(repr, gene.values[:_MOST_SHOWN]))
            more = ", …" if len(gene.values) > _MOST_SHOWN else ""
            raise UsageError(f"{value!r} is not a value of {gene.name}; expected {known}{more}")
    configuration = Configuration({wanted: values[wanted] for wanted in names})
    if not space.is_valid(configuration):
        why = "; ".join(space.violations(configuration))
        why = why or "a parameter that does not apply has another value than its default"
        raise UsageError(f"the configuration is not valid for {name}: {why}")
    return configuration


@dataclass(frozen=True, slots=True)
class Verified:
    """A configuration that went through the gate again.

    - `number`: the trial's number; None for a configuration that the run did not try.
    - `outcome`: the new outcome, with every check.
    """

    number: int | None
    configuration: Configuration
    outcome: Outcome

    @property
    def passed(self) -> bool:
        """Whether all checks passed, by the rule of a run: findings of racecheck only warn, and a
        skipped check does not count.
        """
        return self.outcome.ok


def verify_run(run: RunFolder, configurations: Sequence[Mapping[str, Value]]) -> Iterator[Verified]:
    """Runs every check of a champion on each configuration, from the run's own sources and in a
    fresh process.

    Changes nothing in the run. Each configuration is timed as briefly as a trial of the search,
    because the gate ends by replaying the timed launches. Raises UsageError for a configuration
    that is not in the space, before anything is compiled.
    """
    reopened = ReopenedRun.load(run)
    wanted = [reopened.configuration(values) for values in configurations]
    with reopened.executor() as executor:
        for configuration in wanted:
            seed = reopened.seed_of(configuration)  # the inputs of its confirmation again
            proposal = reopened.planner.proposal(seed, configuration, confirm=True)
            outcome = outcome_of(executor, dataclasses.replace(proposal, audit=True))
            yield Verified(reopened.numbers.get(configuration), configuration, outcome)


def remeasure(
    first: tuple[RunFolder, Mapping[str, Value]], second: tuple[RunFolder, Mapping[str, Value]]
) -> Outcome:
    """Checks the second configuration as a trial, then times it against the first one.

    Each is compiled from its own run's sources. In the outcome the first configuration is the
    baseline, so a `speedup` above 1 means that the second one is faster. Raises UsageError if the
    two runs do not solve the same problem, or have no timed case in common.
    """
    one, other = ReopenedRun.load(first[0]), ReopenedRun.load(second[0])
    problems = [reopened.setup.problem_spec for reopened in (one, other)]
    named = [(problem.name, problem.dtype) for problem in problems]
    if named[0] != named[1]:
        words = " and ".join(" ".join(pair) for pair in named)
        raise UsageError(f"the runs solve different problems: {words}")
    before, after = one.configuration(first[1]), other.configuration(second[1])
    rival = one.rival_jobs(before)
    known = {job.case.label for job in rival}
    if known.isdisjoint(job.case.label for job in other.rival_jobs(after)):
        raise UsageError("the runs have no timed case in common, so they cannot be compared")
    proposal = against(other.planner.proposal(other.seed_of(after), after), rival)
    with other.executor() as executor:
        run = functools.partial(outcome_of, executor)
        return repeated(run, proposal, run(proposal))
