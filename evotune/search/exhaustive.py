"""Proposes every configuration once, in the space's order, and lists the space only as needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from evotune.search.folded import FoldedStrategy
from evotune.trial import Configuration


class ExhaustiveSearch(FoldedStrategy):
    name: ClassVar[str] = "exhaustive"

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        return self._unseen.first(frozenset(pending))
