"""A run on a recorded space: outcomes are looked up, and there is nothing to confirm."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from evotune.engine.setup import RecordedSetup
from evotune.execute.executor import Executor, Proposal
from evotune.execute.inline import InlineExecutor
from evotune.trial import Configuration, Outcome, Trial


class RecordedRun:
    """The kind of run that needs no device."""

    confirms = False

    def __init__(self, setup: RecordedSetup) -> None:
        self.setup = setup

    def open_executor(self) -> Executor:
        return InlineExecutor(self.setup.recording.outcome, self.setup.delay_ms / 1000)

    def proposal(self, number: int, configuration: Configuration) -> Proposal:
        return Proposal(number, configuration)

    def confirmed(
        self, executor: Executor, *, stop: Callable[[], bool], no_time: Callable[[], bool]
    ) -> Iterator[tuple[Trial, Outcome]]:
        """None: a recording cannot be measured again."""
        return iter(())
