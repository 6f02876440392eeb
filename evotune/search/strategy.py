"""The ask/tell protocol of all search strategies.

A search depends on the settings and on the outcomes in the order of the proposals, and on nothing
else. So a resumed run asks for the same configurations as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evotune.trial import Configuration, Json, Trial


class Strategy(Protocol):
    """Proposes configurations and learns from outcomes. Not safe for use by two threads.

    Every proposal is a valid configuration that was not passed to `tell` before and is not pending.
    """

    @property
    def name(self) -> str: ...

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        """Returns proposal `number`, or None if every configuration of the space was proposed.

        It is a pure function of the settings, `number`, the trials passed to `tell` so far, and
        `pending`: the configurations that were proposed and whose outcomes are not known yet, in
        order.
        """

    def tell(self, trial: Trial) -> None:
        """Learns the outcome of a trial. Trials come in the order of their numbers, and a call is
        cheap. If a configuration comes again, it was measured again, and the newer outcome counts.
        """

    def snapshot(self) -> Json:
        """The learnt state as JSON-able data. Restoring it is equivalent to passing all trials to
        `tell` again."""

    def restore(self, snapshot: Json) -> None:
        """Replaces the learnt state by a snapshot. Raises StoreError if the snapshot is damaged or
        from another search; then the strategy has no outcomes."""

    @property
    def told(self) -> int:
        """The number of trials that `tell` has received."""

    @property
    def generation(self) -> int:
        """The number of complete generations."""

    @property
    def best(self) -> Elite | None: ...

    @property
    def elites(self) -> Sequence[Elite]:
        """The best distinct configurations so far, best first."""

    @property
    def contender(self) -> float | None:
        """The fitness that a trial must exceed to become an elite; None while any fitness is
        enough."""


@dataclass(frozen=True, slots=True)
class Elite:
    """The part of a successful trial that a strategy remembers. The run's store has the rest."""

    number: int
    configuration: Configuration
    fitness: float


def stream(seed: int, purpose: str, number: int) -> random.Random:
    """The random generator for one purpose of one proposal. Equal arguments always give equal
    numbers; other purposes and proposals get independent numbers.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "big"))
