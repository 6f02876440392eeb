"""The whole gate again for configurations of a run, on demand: `evotune verify`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from evotune.engine.folder import RunFolder
from evotune.engine.reopening import ReopenedRun
from evotune.engine.repetition import outcome_of
from evotune.trial import Configuration, Outcome, Value


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """What the gate found; `outcome` holds every check. `number` is the trial's, None for a
    configuration that the run did not try."""

    number: int | None
    configuration: Configuration
    outcome: Outcome

    @property
    def passed(self) -> bool:
        """As a run judges it: what racecheck found is a warning, what was skipped is neither."""
        return self.outcome.ok


def verify_run(run: RunFolder, configurations: Sequence[Mapping[str, Value]]) -> Iterator[Verified]:
    """Everything a champion gets, from the run's own sources, each in a fresh process.

    Reads the run and changes nothing in it. Each is timed as briefly as a trial of the search,
    since the gate ends by replaying what was timed. UsageError for a configuration that the
    space does not hold, before anything is compiled.
    """
    reopened = ReopenedRun.load(run)
    wanted = [reopened.configuration(values) for values in configurations]
    with reopened.executor() as executor:
        for configuration in wanted:
            seed = reopened.seed_of(configuration)  # the inputs of its confirmation again
            proposal = reopened.planner.proposal(seed, configuration, confirm=True)
            outcome = outcome_of(executor, dataclasses.replace(proposal, audit=True))
            yield Verified(reopened.numbers.get(configuration), configuration, outcome)
