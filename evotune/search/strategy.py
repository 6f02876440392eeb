"""The ask/tell protocol of all search strategies.

A search is a fold over outcomes in the order of the proposals. Nothing else may influence it, so
a resumed run asks for the same configurations as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from evotune.trial import Configuration, Json, Trial


@dataclass(frozen=True, slots=True)
class Elite:
    """A successful trial as a strategy remembers it; the run's store holds the rest."""

    number: int
    configuration: Configuration
    fitness: float


class Strategy(Protocol):
    """Proposes configurations and learns from outcomes. Not safe for use by two threads.

    Every proposal is a valid configuration that was neither told nor is pending.
    """

    @property
    def name(self) -> str: ...

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        """Proposal `number`, or None when every configuration of the space was proposed.

        A pure function of the settings, `number`, the trials told so far and `pending`,
        the configurations proposed but not told yet, in order.
        """

    def tell(self, trial: Trial) -> None:
        """Learn an outcome; trials come in the order of their numbers. Cheap.

        A configuration that is told again was measured again: the newer outcome counts.
        """

    def snapshot(self) -> Json:
        """The learnt state, JSON-able: restoring it equals telling all trials again."""

    def restore(self, snapshot: Json) -> None:
        """Replace the learnt state. StoreError when the snapshot is damaged or of another search;
        then the state is empty."""

    @property
    def told(self) -> int:
        """Number of trials told."""

    @property
    def generation(self) -> int:
        """Number of complete generations."""

    @property
    def best(self) -> Elite | None: ...

    @property
    def elites(self) -> Sequence[Elite]:
        """The best distinct configurations so far, best first."""

    @property
    def contender(self) -> float | None:
        """The least fitness that makes an elite; None while any fitness does."""

    @property
    def logbook(self) -> Sequence[Mapping[str, Json]]:
        """One record a generation: generation, evaluations, failures, best and statistics
        (mean, deviation, worst, top) of its successful fitness values, None without any."""
