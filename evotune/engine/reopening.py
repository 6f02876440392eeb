"""Working on a finished run's configurations again: its space, its sources, its device."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evotune.backends.registry import measuring_alone
from evotune.engine.folder import RunFolder
from evotune.engine.planning import Planner
from evotune.engine.setup import Setup, load_run_setup
from evotune.engine.stop_signal import interruptible
from evotune.engine.work import open_kernel_executor
from evotune.errors import UsageError
from evotune.execute.local import LocalExecutor
from evotune.execute.protocol import TIMED, CaseJob, Proposal
from evotune.scratch import scratch_folder
from evotune.space.bound import BoundSpace
from evotune.space.suggest import did_you_mean
from evotune.store import RunStore
from evotune.trial import Configuration, Json, Value


@dataclass(frozen=True, slots=True)
class ReopenedRun:
    """A run of kernels, ready to compile and to launch what its space holds."""

    run: RunFolder
    setup: Setup
    baselines: Mapping[str, str]
    numbers: Mapping[Configuration, int]
    """The first trial of each configuration that was tried."""

    @classmethod
    def load(cls, run: RunFolder) -> ReopenedRun:
        """UsageError when the run holds no kernel, or ended before its first trial."""
        with RunStore.open_for_reading(run.store) as store:
            if store.meta("kind") == "recorded":
                raise UsageError(f"run {run.id} replays a recording: there is no kernel in it")
            baselines = store.meta("baselines")
            if baselines is None:
                raise UsageError(f"run {run.id} ended before its first trial: nothing was tried")
            setup = load_run_setup(run, store)
            numbers: dict[Configuration, int] = {}
            for trial in store.trials():
                numbers.setdefault(trial.configuration, trial.number)
        return cls(run, setup, dict(baselines["chosen"]), numbers)

    @property
    def space(self) -> BoundSpace:
        assert isinstance(self.setup.space, BoundSpace)
        return self.setup.space

    @property
    def planner(self) -> Planner:
        assert self.setup.planner is not None
        return self.setup.planner

    def seed_of(self, configuration: Configuration) -> int:
        """A trial's number makes its inputs; a configuration that was not tried gets a new one."""
        return self.numbers.get(configuration, len(self.numbers))

    def rival_jobs(self, configuration: Configuration) -> tuple[CaseJob, ...]:
        """The timed cases of a configuration that others are to be timed against."""
        proposal = self.planner.proposal(0, configuration)
        if proposal.rejection:
            raise UsageError(f"the configuration cannot run here: {proposal.rejection}")
        return tuple(job for job in proposal.cases if job.role == TIMED)

    @contextlib.contextmanager
    def executor(self) -> Iterator[LocalExecutor]:
        """Alone on the device; what its children write goes to a folder that is deleted."""
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
        """`values` as a member of the space; UsageError when they are none."""
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
            raise UsageError(f"{value!r} is not a value of {gene.name}")
    configuration = Configuration({wanted: values[wanted] for wanted in names})
    if not space.is_valid(configuration):
        why = "; ".join(space.violations(configuration))
        why = why or "a parameter that does not apply has another value than its default"
        raise UsageError(f"the configuration is not valid for {name}: {why}")
    return configuration
