"""Counts the calls of transformers' models that are left to its `sdpa` before a kernel is looked
for."""

from __future__ import annotations

from ._missed import Missed, Misses
from ._tracing import decided_while_tracing

BEFORE = "transformers' sdpa"


class LeftCalls:
    """Counts calls by kind. While torch.compile traces, a call counts once for each graph."""

    def __init__(self, misses: Misses) -> None:
        self._misses = misses
        self._counters: dict[tuple[str, str, str], Missed] = {}

    @decided_while_tracing
    def count(self, kind: str, words: str, before: str = BEFORE) -> bool:
        """Counts a call; `words` are the reason, and `before` names what serves the call."""
        key = kind, words, before
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._misses.missed(kind, None, words, before)
        counter.count()
        return True
