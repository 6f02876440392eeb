"""The ranking: confirmed champions first, ties named, duplicates folded into their twin."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evotune.report.data import RunData
from evotune.report.deciding_outcomes import Evidence, Figures, figures, interval, weigh
from evotune.trial import Configuration, Measurement, Outcome


@dataclass(frozen=True, slots=True)
class Row:
    """One machine code with its place. `duplicates` are the other trials with the same code."""

    rank: int
    tied: bool
    number: int
    configuration: Configuration
    outcome: Outcome
    confirmed: bool
    figures: Figures
    duplicates: tuple[int, ...] = ()
    model: str = ""
    """Model of the device, if the run had several: ranks count within a model."""

    @property
    def place(self) -> str:
        """The rank as people read it: `1=` when it is shared."""
        return f"{self.rank}=" if self.tied else str(self.rank)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Findings that do not disqualify: a valid outcome's failed checks (racecheck's)."""
        failed = (check for check in self.outcome.checks if check.status == "failed")
        return tuple(f"{check.inputs}: {check.detail}" for check in failed)

    @property
    def timed(self) -> tuple[Measurement, ...]:
        """Measurements of the cases that make the fitness."""
        return tuple(m for m in self.outcome.measurements if m.counts)


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """`rows` in rank order; `disqualified` were valid in the search but not when confirmed."""

    rows: tuple[Row, ...]
    disqualified: tuple[Evidence, ...]


def rank(data: RunData, evidence: Mapping[int, Evidence] | None = None) -> Leaderboard:
    """Ranks confirmed rows by the lower bound of their interval, then the others by fitness.

    Rows share a rank while their interval overlaps the interval of the group's first row. Each
    device model has ranks of its own; the model of the run's first device comes first.
    """
    known = weigh(data) if evidence is None else evidence
    groups: dict[int, list[Evidence]] = {}
    for item in known.values():
        groups.setdefault(item.twin, []).append(item)
    leaders = [known[twin] for twin in groups]
    own = data.facts.device.name
    by_model: dict[str, list[Evidence]] = {own: []}
    for leader in sorted((leader for leader in leaders if leader.outcome.ok), key=_order):
        by_model.setdefault(leader.outcome.device_model or own, []).append(leader)
    mixed = sum(map(bool, by_model.values())) > 1
    rows: list[Row] = []
    for model, ranked in by_model.items():
        rows += _rows(data, ranked, groups, model if mixed else "")
    return Leaderboard(tuple(rows), tuple(leader for leader in leaders if leader.disqualified))


def _rows(
    data: RunData, ranked: Sequence[Evidence], groups: Mapping[int, list[Evidence]], model: str
) -> list[Row]:
    ranks = ranks_of(interval(leader.outcome) for leader in ranked)
    shared = Counter(ranks)
    return [
        Row(
            rank=place,
            tied=shared[place] > 1,
            number=leader.trial.number,
            configuration=leader.trial.configuration,
            outcome=leader.outcome,
            confirmed=leader.confirmed,
            figures=figures(leader.outcome, recorded=data.recorded),
            duplicates=tuple(
                item.trial.number
                for item in groups[leader.twin]
                if item.trial.number != leader.trial.number
            ),
            model=model,
        )
        for place, leader in zip(ranks, ranked, strict=True)
    ]


def _order(item: Evidence) -> tuple[bool, float, float, int]:
    fitness = item.outcome.fitness or 0.0
    first = interval(item.outcome)[0]
    return sort_key(item.confirmed, fitness, first, item.trial.number)


def sort_key(
    confirmed: bool, fitness: float, low: float, number: int
) -> tuple[bool, float, float, int]:
    """Sort key of the rows; `low` is the lower bound of the fitness."""
    return (not confirmed, -low if confirmed else -fitness, -fitness, number)


def ranks_of(intervals: Iterable[tuple[float, float]]) -> list[int]:
    """Ranks of fitness intervals in the rows' order, as in sport: a third follows two firsts."""
    ranks: list[int] = []
    leader = (math.nan, math.nan)  # overlaps nothing
    for place, (low, high) in enumerate(intervals, start=1):
        if low <= leader[1] and leader[0] <= high:
            ranks.append(ranks[-1])
        else:
            leader = (low, high)
            ranks.append(place)
    return ranks
