"""Where the next search goes, and with how much of the budget."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from evotune.portfolios.points import OTHER_BINARY, Point, distance
from evotune.trial import Json

_SEARCHING = 0.6
"""Share of the minutes that searches get. The matrix gets the rest."""
SERVED_BADLY = 0.97
"""A case is served badly below this share of the speedup that is expected there."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Divides the budget of a portfolio among its searches.

    The `first` searches go to representative cases (`_representatives.py`). Up to half as many
    further searches go to cases that are served badly. Each search gets the same share of `trials`
    and of `minutes`; None means no limit.
    """

    first: int
    trials: int | None
    minutes: float | None

    @property
    def most(self) -> int:
        return self.first + math.ceil(self.first / 2)

    def has_more(self, searches: int, trials: int, elapsed_s: float) -> bool:
        """Whether a further search has trials and time left."""
        if searches >= self.most or (self.trials is not None and trials >= self.trials):
            return False
        return self.has_time(elapsed_s)

    def has_time(self, elapsed_s: float) -> bool:
        """Whether a search may begin: the matrix needs the rest of the time."""
        return self.minutes is None or elapsed_s < 60 * _SEARCHING * self.minutes

    def options(self, searches: int, trials: int) -> dict[str, Json]:
        """The options of the next run's limits. One champion of it is confirmed."""
        left = max(1, self.most - searches)
        found: dict[str, Json] = {"champions": 1}
        if self.trials is not None:
            found["trials"] = max(1, (self.trials - trials) // left)
        if self.minutes is not None:
            found["minutes"] = _SEARCHING * self.minutes / self.most
        return found


def nearest_searched(point: Point, searched: Iterable[Point]) -> str | None:
    """The searched case whose configurations the search for `point` begins with."""
    others = [other for other in searched if other.label != point.label]
    found = min(others, key=lambda other: (distance(point, other), other.label), default=None)
    return None if found is None else found.label


def worst_served(
    points: Sequence[Point], searched: Collection[str], variants: Sequence[str]
) -> str | None:
    """The label of the case for the next search: of the cases that were not searched, the one that
    falls furthest behind. None if every case reaches 97% of the speedup that is expected.

    The expected speedup is the mean over the searched cases with the same binaries, weighted by
    nearness. A case is behind by ln(expected / reached) times its weight. A case that shares its
    binaries with no searched case goes first, since no kernel can serve it.
    """
    best: tuple[float, str] | None = None
    for point in points:
        if point.label in searched:
            continue
        known = [
            (apart, _reached(other))
            for other in points
            if other.label in searched
            and (apart := distance(point, other, variants)) < OTHER_BINARY
        ]
        weights = [1.0 / (apart * apart + 1e-6) for apart, _ in known]
        behind = math.inf
        if known:
            pairs = zip(weights, known, strict=True)
            expected = sum(w * reached for w, (_, reached) in pairs) / sum(weights)
            behind = expected - _reached(point)
        if behind > -math.log(SERVED_BADLY):
            rank = point.weight * behind
            if best is None or rank > best[0]:
                best = rank, point.label
    return None if best is None else best[1]


def _reached(point: Point) -> float:
    """ln of the best speedup that a kernel reaches there; 0 for PyTorch's own."""
    return max([0.0, *(point.gain(kernel) for kernel in range(len(point.scores)))])
