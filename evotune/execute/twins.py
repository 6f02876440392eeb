"""Earlier outcomes of the same machine code, so that no code is measured twice in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from evotune.trial import Outcome

Twin: TypeAlias = tuple[int, Outcome]  # the trial's number and its outcome

_RECENT = 256  # far more outcomes than can be finished and not yet stored


class Twins:
    """Finds trials by fingerprint (machine code and launch). It remembers the latest outcomes and
    asks `stored` for the others.

    `stored` finds a trial in the run's store, in whichever thread this object is used.
    """

    def __init__(self, stored: Callable[[str], Twin | None] = lambda fingerprint: None) -> None:
        self._stored = stored
        self._recent: dict[str, Twin] = {}

    def find(self, fingerprint: str) -> Twin | None:
        return self.recent(fingerprint) or self._stored(fingerprint)

    def recent(self, fingerprint: str) -> Twin | None:
        """As `find`, but among the latest outcomes only, which takes no time."""
        return self._recent.get(fingerprint)

    def remember(self, number: int, outcome: Outcome) -> None:
        self._recent[outcome.binary] = (number, outcome)
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
