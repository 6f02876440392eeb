"""Uniform random search without replacement, against which every other strategy is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evotune.search.folded import FoldedStrategy
from evotune.search.streams import stream
from evotune.trial import Configuration


class RandomSearch(FoldedStrategy):
    """Draws until a configuration is new. The last fraction of a percent of a space follows in the
    space's order."""

    name: ClassVar[str] = "random"

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        rng = stream(self._settings.seed, "sample", number)
        return self._unseen.sample(rng, frozenset(pending))
