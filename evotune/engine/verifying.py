"""The whole gate again for configurations of a run, on demand: `evotune verify`."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evotune.device.cuda.lock import measuring_alone
from evotune.engine.folder import RunFolder
from evotune.engine.setup import Setup, load_run_setup
from evotune.engine.work import open_kernel_executor
from evotune.errors import UsageError
from evotune.execute.local import LocalExecutor
from evotune.space.bound import BoundSpace
from evotune.space.suggest import did_you_mean
from evotune.store import RunStore
from evotune.trial import Configuration, Json, Outcome, Value


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """What the gate found; `outcome` holds every check. `number` is the trial's, None for a
    configuration that the run did not try."""

    number: int | None
    configuration: Configuration
    outcome: Outcome

    @property
    def passed(self) -> bool:
        """Nothing failed; what was skipped is neither."""
        return self.outcome.ok and all(check.status != "failed" for check in self.outcome.checks)


def verify_run(run: RunFolder, configurations: Sequence[Mapping[str, Value]]) -> Iterator[Verified]:
    """Everything a champion gets, from the run's own sources, each in a fresh process.

    Reads the run and changes nothing in it. Each is timed as briefly as a trial of the search,
    since the gate ends by replaying what was timed. UsageError for a configuration that the
    space does not hold, before anything is compiled.
    """
    with RunStore.open_for_reading(run.store) as store:
        if store.meta("kind") == "recorded":
            raise UsageError(f"run {run.id} replays a recording: there is no kernel to verify")
        baselines = store.meta("baselines")
        if baselines is None:
            raise UsageError(f"run {run.id} ended before its first trial: nothing to verify")
        setup = load_run_setup(run, store)
        numbers: dict[Configuration, int] = {}
        for trial in store.trials():
            numbers.setdefault(trial.configuration, trial.number)
    wanted = [_configuration(setup, values) for values in configurations]
    with measuring_alone(setup.profile), tempfile.TemporaryDirectory(prefix="evotune-") as folder:
        executor = open_kernel_executor(setup, Path(folder))
        executor.baselines = dict(baselines["chosen"])
        try:
            for configuration in wanted:
                number = numbers.get(configuration)
                # A trial's number makes its inputs: those of its confirmation again.
                seed = len(numbers) if number is None else number
                outcome = _examine(setup, executor, seed, configuration)
                yield Verified(number, configuration, outcome)
        finally:
            executor.close()


def _examine(
    setup: Setup, executor: LocalExecutor, seed: int, configuration: Configuration
) -> Outcome:
    assert setup.planner is not None
    proposal = setup.planner.proposal(seed, configuration, confirm=True)
    executor.submit(dataclasses.replace(proposal, audit=True))
    while True:
        for _, outcome in executor.poll(0.5):
            return outcome


def _configuration(setup: Setup, values: Mapping[str, Json]) -> Configuration:
    """One value for every parameter, in the space's order."""
    space = setup.space
    assert isinstance(space, BoundSpace)
    names = [parameter.name for parameter in space.parameters]
    for name in values:
        if name not in names:
            hint = did_you_mean(str(name), names)
            raise UsageError(f"the configuration has an unknown parameter {name!r}{hint}")
    missing = [name for name in names if name not in values]
    if missing:
        raise UsageError(f"the configuration lacks {', '.join(missing)}")
    for gene in space.genes:
        value = values[gene.name]
        if not any(type(value) is type(known) and value == known for known in gene.values):
            raise UsageError(f"{value!r} is not a value of {gene.name}")
    configuration = Configuration({name: values[name] for name in names})
    if not space.is_valid(configuration):
        why = "; ".join(space.violations(configuration))
        why = why or "a parameter that does not apply has another value than its default"
        raise UsageError(f"the configuration is not valid for {setup.name}: {why}")
    return configuration
