"""What is known of machine code that comes again, so that none is measured twice in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from evotune.trial import Outcome

Twin: TypeAlias = tuple[int, Outcome]  # the trial's number, and what it came to

_RECENT = 256  # far more than lie between an outcome's coming and its being stored


class Twins:
    """By fingerprint (machine code and launch). Remembers what came of late, asks for the rest.

    `stored` finds a stored trial, from whatever thread this is used in.
    """

    def __init__(self, stored: Callable[[str], Twin | None] = lambda fingerprint: None) -> None:
        self._stored = stored
        self._recent: dict[str, Twin] = {}

    def find(self, fingerprint: str) -> Twin | None:
        return self.recent(fingerprint) or self._stored(fingerprint)

    def recent(self, fingerprint: str) -> Twin | None:
        """As `find`, of the last outcomes only: at once."""
        return self._recent.get(fingerprint)

    def remember(self, number: int, outcome: Outcome) -> None:
        self._recent[outcome.binary] = (number, outcome)
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
