"""The Pareto front of a run with several objectives."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from evotune.objectives import SINGLE, values
from evotune.report import wording
from evotune.report._table import TextTable
from evotune.report.data import RunData
from evotune.report.deciding_outcomes import Evidence, weigh
from evotune.trial import Configuration

MEANING = (
    "Pareto front: no other trial is both faster and more accurate. Figures as the search measured "
    "them; error is the share of the limit in the check that came closest to it."
)


@dataclass(frozen=True, slots=True)
class Compromise:
    """A trial of the front, with the search's figures: confirmations check more, so their errors
    cannot be compared. `error` is the largest error as a share of its limit."""

    number: int
    configuration: Configuration
    speedup: float
    error: float
    confirmed: bool


def pareto_front(
    data: RunData, evidence: Iterable[Evidence] | None = None
) -> tuple[Compromise, ...]:
    """The trials that no other trial beats in every objective, fastest first; of equal trials, only
    the first. Empty for a run with one objective."""
    objectives = tuple(data.settings.get("objectives", SINGLE))
    if objectives == SINGLE:
        return ()
    known = weigh(data).values() if evidence is None else evidence
    valid = [item for item in known if item.outcome.ok and item.twin == item.trial.number]
    ranked = sorted(
        ((values(item.trial.outcome, ("speedup", "error")), item) for item in valid),
        key=lambda pair: (-pair[0][0], -pair[0][1], pair[1].trial.number),
    )
    return tuple(
        Compromise(
            item.trial.number,
            item.trial.configuration,
            math.exp(speedup),
            -accuracy,
            item.confirmed,
        )
        for (speedup, accuracy), item in _first_front(ranked)
    )


def _first_front(
    ranked: Iterable[tuple[tuple[float, ...], Evidence]],
) -> Iterable[tuple[tuple[float, ...], Evidence]]:
    """The pairs, in falling order of speedup, that are more accurate than all before."""
    best = -math.inf
    for figures, item in ranked:
        if figures[1] > best:
            best = figures[1]
            yield figures, item


def front_table(front: Iterable[Compromise]) -> TextTable:
    return TextTable(
        ("trial", "speedup", "error / limit", "confirmed", "configuration"),
        (True, True, True, False, False),
        tuple(
            (
                str(row.number),
                f"{row.speedup:.3f}x",
                f"{row.error:.1%}",
                "yes" if row.confirmed else "no",
                wording.configuration_text(row.configuration),
            )
            for row in front
        ),
    )
