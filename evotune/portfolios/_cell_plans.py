"""Which champions can run which cases, and what a measured cell says about the two.

A champion is measured on the cases of the binaries that its confirmation checked: the same dtype,
head size and mask, of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from evotune.errors import SpaceError
from evotune.portfolios.matrix_store import Cell
from evotune.portfolios.points import REFUSED, Score
from evotune.problems.executed_sizes import band_pairs, joined_lengths, joined_pairs
from evotune.problems.problem import Case, Place
from evotune.runs.confirmed_champions import Champion, is_won, widened_alone
from evotune.runs.launches import Rejected
from evotune.trial import Domain, ExecutedLengths, Outcome, Region
from evotune.workers.executor import CaseJob


def cell_of(champion: Champion, case: Case) -> Cell:
    return Cell(case.label, *champion.key)


class CellPlans:
    """The launches of champions on cases, each planned once."""

    def __init__(self) -> None:
        self._known: dict[Cell, CaseJob | None] = {}

    def job(self, champion: Champion, case: Case) -> CaseJob | None:
        """The champion's launches on the case; None where it cannot run there, or where no check of
        its confirmation is of the same binary."""
        cell = cell_of(champion, case)
        if cell not in self._known:
            self._known[cell] = _planned(champion, case)
        return self._known[cell]

    def score(self, champion: Champion, case: Case, outcome: Outcome | None) -> Score | None:
        """The champion's score on the case; None where it cannot run there. A cell without an
        outcome was not measured: nothing may be served on its behalf."""
        if self.job(champion, case) is None:
            return None
        if outcome is None or not outcome.ok:
            return REFUSED
        (alone,) = (m for m in outcome.measurements if m.counts)
        profile = champion.run.setup.profile
        measured = widened_alone(profile, alone)
        won = is_won(profile, champion.problem, measured)
        return Score(measured.speedup, measured.speedup_low, won)


def _planned(champion: Champion, case: Case) -> CaseJob | None:
    place, regions = champion.place(case), champion.domain.regions
    planner = champion.run.planner
    kernel = planner.kernel_of(champion.configuration)
    # Between its checked cases, whatever sizes were executed together: the gate checks the cell.
    inside = any(place.is_in(region.fixed, region.ranges) for region in regions)
    if not set(kernel.compiled_in) <= place.fixed.keys() and not inside:
        return None
    if all(region.fixed != place.fixed for region in regions):
        return None
    try:
        return planner.case_job(champion.configuration, case)
    except (Rejected, SpaceError):
        return None


def extended_domain(
    domain: Domain, champion: Champion, passed: Sequence[Case], launched: Sequence[Region]
) -> Domain:
    """The domain of a champion, which the cases that `passed` in the matrix extend, and the regions
    in which it was `launched` at sizes one by one. A binary whose lengths the confirmation did not
    execute beside one whose lengths it did, as a specialised one, stays without."""
    places = [champion.place(case) for case in passed]
    with_lengths = [region.fixed for region in domain.regions if region.executed is not None]
    regions = []
    for region in domain.regions:
        alike = [place for place in places if place.fixed == region.fixed]
        ranges = {
            name: (
                min([low, *(place.ranged[name] for place in alike)]),
                max([high, *(place.ranged[name] for place in alike)]),
            )
            for name, (low, high) in region.ranges.items()
        }
        more = [each for each in launched if each.fixed == region.fixed]
        pairs: dict[str, tuple[tuple[int, int], ...]] = {}
        if region.pairs or more:
            pairs = joined_pairs(region.pairs, band_pairs(alike), *(each.pairs for each in more))
        executed: Sequence[ExecutedLengths] = ()
        if region.executed is not None or region.fixed not in with_lengths:
            executed = joined_lengths(region.executed or (), *(e.executed or () for e in more))
            executed = joined_lengths(executed, _own_lengths(executed, alike))
        cases = region.cases + len(alike)
        regions.append(Region(region.fixed, ranges, cases, pairs, tuple(executed) or None))
    return msgspec.structs.replace(domain, regions=tuple(regions))


def _own_lengths(
    executed: Sequence[ExecutedLengths], places: Sequence[Place]
) -> Iterator[ExecutedLengths]:
    """The lengths of cases that passed themselves."""
    for each in executed:
        for place in places:
            if all(place.ranged.get(name) == value for name, value in each.alike.items()):
                own = int(place.ranged[each.name])
                yield ExecutedLengths(each.name, each.alike, ((own, own),))
