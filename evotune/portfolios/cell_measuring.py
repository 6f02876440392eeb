"""Measures champions on cases. The gate checks each cell, and then it is timed in alternation with
the baseline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from evotune.errors import SpaceError
from evotune.portfolios.matrix_store import REFUSED, Cell, Matrix, Score
from evotune.problems.executed_sizes import band_pairs, joined_lengths, joined_pairs
from evotune.problems.problem import Case, Place, distinct_broadcasts
from evotune.runs.confirmed_champions import Champion, is_won, widened_alone
from evotune.runs.kernel_executor import chosen_baseline
from evotune.runs.launches import Rejected
from evotune.trial import Domain, ExecutedLengths, Outcome, Region
from evotune.workers.executor import CaseJob, Executor, Proposal
from evotune.workers.in_flight import speaks_for_its_code
from evotune.workers.local import LocalExecutor

_BASELINES = "baselines"
_AT_ONCE = 8
_IN_FLIGHT = 64
_SEEDS_APART = 12
"""Numbers of cells are multiples of it: so all get the same inputs, which are made once a case."""

OpenExecutor = Callable[[Champion], "contextlib.AbstractContextManager[LocalExecutor]"]


def opened_executor(champion: Champion) -> contextlib.AbstractContextManager[LocalExecutor]:
    """An executor that has the champion's device alone."""
    return champion.run.executor()


def measure_cells(
    matrix: Matrix,
    wanted: Sequence[tuple[Champion, Case]],
    plans: CellPlans,
    *,
    elapsed_s: Callable[[], float],
    out_of_time: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,
    open_executor: OpenExecutor = opened_executor,
) -> None:
    """Measures every requested cell that the matrix lacks, and stores each one when it is finished.
    Large cases come first, because time limits follow from the first cells. A cell whose worker was
    lost is tried again the next time. Ends early if no time is left."""
    missing = [
        (champion, case, job)
        for champion, case in sorted(wanted, key=_largest_first)
        if cell_of(champion, case) not in matrix.cells
        and (job := plans.job(champion, case)) is not None
    ]
    if not missing or out_of_time():
        return
    say(f"measuring {len(missing)} cells: champions on cases, alternating with the baseline")
    first = wanted[0][0]
    with open_executor(first) as executor:
        cases = list({case.label: case for _, case, _ in missing}.values())
        executor.baselines = known = _baselines(matrix, executor, first, cases)
        waiting = ((c, case, job) for c, case, job in missing if known.get(case.label))
        _run(matrix, executor, waiting, elapsed_s, out_of_time)


def _run(
    matrix: Matrix,
    executor: Executor,
    waiting: Iterator[tuple[Champion, Case, CaseJob]],
    elapsed_s: Callable[[], float],
    out_of_time: Callable[[], bool],
) -> None:
    flying: dict[int, Cell] = {}
    number = 0
    while True:
        while len(flying) < _IN_FLIGHT and not out_of_time():
            item = next(waiting, None)
            if item is None:
                break
            champion, case, job = item
            number += _SEEDS_APART
            flying[number] = cell_of(champion, case)
            executor.submit(Proposal(number, champion.configuration, (job,)))
        if not flying:
            return
        for done, outcome in executor.poll(0.5):
            cell = flying.pop(done)
            if speaks_for_its_code(outcome):
                matrix.add(cell, outcome, elapsed_s())


def _largest_first(cell: tuple[Champion, Case]) -> tuple[int, str]:
    champion, case = cell
    return -champion.problem.flops(case), case.label


def _baselines(
    matrix: Matrix, executor: LocalExecutor, champion: Champion, cases: Sequence[Case]
) -> dict[str, str]:
    """The baseline of each case by its label, chosen once; "" if none runs on this device."""
    document = champion.run.setup.document
    with matrix.store.trusting_facts():
        known = {str(k): str(v) for k, v in matrix.store.meta(_BASELINES, {}).items()}
    new = [case for case in cases if case.label not in known]
    for at in range(0, len(new), _AT_ONCE):
        some = new[at : at + _AT_ONCE]
        timings = executor.time_baselines(some).timings
        for case in some:
            try:
                known[case.label] = chosen_baseline(document, case, timings)
            except SpaceError:
                known[case.label] = ""
        matrix.store.set_meta(_BASELINES, known)
    return known


def baselines_of(matrix: Matrix) -> Mapping[str, str]:
    """The chosen baseline of each case."""
    with matrix.store.trusting_facts():
        return dict(matrix.store.meta(_BASELINES, {}))


# Which champions can run which cases, and what a measured cell says about the two.
#
# A champion is measured on the cases of the binaries that its confirmation checked: the same dtype,
# head size and mask, of any size.
def cell_of(champion: Champion, case: Case) -> Cell:
    return Cell(case.label, *champion.key)


class CellPlans:
    """Plans the launches of champions on cases, each once."""

    def __init__(self) -> None:
        self._known: dict[Cell, CaseJob | None] = {}

    def job(self, champion: Champion, case: Case) -> CaseJob | None:
        """The champion's launches on the case; None if it cannot run on the case, or if no check of
        its confirmation used the same binary."""
        cell = cell_of(champion, case)
        if cell not in self._known:
            self._known[cell] = _planned(champion, case)
        return self._known[cell]

    def score(self, champion: Champion, case: Case, outcome: Outcome | None) -> Score | None:
        """The champion's score on the case; None if it cannot run on the case. A cell without an
        outcome was not measured, so its kernel must not serve the case."""
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
    """The domain of a champion, extended by the cases that `passed` in the matrix and by the
    regions in which it was `launched` at each size. If confirmation executed lengths for some
    binaries only (not for a specialised one, for example), the others still have none.
    """
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
        mask_sizes = {*region.mask_sizes, *(place.mask_sizes for place in alike)} - {""}
        regions.append(
            Region(
                region.fixed,
                ranges,
                region.cases + len(alike),
                pairs,
                tuple(executed) or None,
                distinct_broadcasts(sorted(mask_sizes)),
            )
        )
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
