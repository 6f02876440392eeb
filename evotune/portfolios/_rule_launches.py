"""Launches the kernels of a rule at the sizes that the rule gives them.

A run's confirmation executes the lengths near its own case. A rule reaches from one case of the
list to the next, so its kernels are launched at the lengths between them too, before they serve
one. The outcome is kept in the matrix, beside the cells.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from evotune.portfolios._cell_measuring import OpenExecutor
from evotune.portfolios._cell_plans import cell_of
from evotune.portfolios._executed_rule import known_region
from evotune.portfolios._variant_checks import confirmed_domain
from evotune.portfolios.matrix_store import SIZES, VARIANT, Cell, Matrix
from evotune.portfolios.rule import RuleRegion
from evotune.problems import UserProblem
from evotune.problems.executed_sizes import near_ranges, tightened
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import Champion, has_own_check
from evotune.runs.confirming import outcome_of
from evotune.trial import CUT_SHORT, Domain, Outcome, Region, Value
from evotune.workers.executor import SERVED_S
from evotune.workers.in_flight import speaks_for_its_code

_MOST_CASES = 8
"""As long as single runs take for the served sizes of so many cases, the launches may take."""
_R = TypeVar("_R", RuleRegion, Region)


@dataclass(frozen=True, slots=True)
class SizeLaunches:
    """Launches of a champion at the sizes of these regions, which share all fixed values. `cases`
    lie there, and the champion was right on them. What the champion's confirmations executed is in
    the regions."""

    champion: Champion
    cases: Sequence[Case]
    regions: Sequence[Region]

    @property
    def fixed(self) -> Mapping[str, Value]:
        return self.regions[0].fixed

    @property
    def cell(self) -> Cell:
        """Other regions or cases have another cell."""
        asked = [[case.label for case in self.cases], msgspec.to_builtins(list(self.regions))]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
        fixed = json.dumps(dict(self.fixed), sort_keys=True)
        return Cell(f"{SIZES}{digest} {fixed}", *self.champion.key)

    def missing(self, matrix: Matrix, *, has_time: bool) -> bool:
        """Whether they are to be made: they were not, or there was no time for all and is now."""
        known = matrix.cells.get(self.cell)
        return known is None or (CUT_SHORT in known.flags and has_time)


def rule_launches(
    matrix: Matrix,
    champions: Sequence[Champion],
    rule: Sequence[RuleRegion],
    cases: Mapping[str, Case],
) -> Iterator[SizeLaunches]:
    """The launches for the rule. `cases`: those of the list, by label. A region of a single case
    needs none: the gate checked that case."""
    for number in sorted({region.kernel for region in rule}):
        champion = champions[number]
        domain = confirmed_domain(matrix, champion)
        own = [region for region in rule if region.kernel == number and not region.exact]
        if isinstance(champion.problem, UserProblem):
            if not has_own_check(champion.problem):
                yield from _of_domain(matrix, champion, domain, cases)
            continue
        for regions in _by_fixed(own):
            labels = sorted({label for region in regions for label in region.cases})
            wanted = [_with_known(region, domain) for region in regions]
            yield SizeLaunches(champion, [cases[label] for label in labels], wanted)


def _of_domain(
    matrix: Matrix, champion: Champion, domain: Domain, cases: Mapping[str, Case]
) -> Iterator[SizeLaunches]:
    """For a user's problem, whose kernels serve their whole domain: all lengths up to a tenth
    beyond the longest case, as in a package of runs."""
    passed = [
        case
        for case in cases.values()
        if (outcome := matrix.cells.get(cell_of(champion, case))) is not None and outcome.ok
    ]
    for regions in _by_fixed(domain.regions):
        inside = [case for case in passed if champion.place(case).fixed == regions[0].fixed]
        if inside:
            near = near_ranges([champion.place(case) for case in inside])
            wanted = msgspec.structs.replace(regions[0], ranges=near)
            yield SizeLaunches(champion, inside, [_with_known(wanted, domain)])


def _by_fixed(regions: Sequence[_R]) -> Iterator[list[_R]]:
    groups: dict[str, list[_R]] = {}
    for region in regions:
        groups.setdefault(repr(sorted(region.fixed.items())), []).append(region)
    yield from groups.values()


def _with_known(region: RuleRegion | Region, domain: Domain) -> Region:
    known = known_region(region, domain)
    return msgspec.structs.replace(known, ranges=tightened(region.ranges))


def launch(
    matrix: Matrix,
    launches: SizeLaunches,
    *,
    until_s: float,
    elapsed_s: Callable[[], float],
    open_executor: OpenExecutor,
) -> Outcome | None:
    """Makes the launches and keeps their outcome; None where the kernel takes none of the sizes.
    They end at `until_s` on the monotonic clock, or after as long as runs of the cases would take:
    8 s for each case, and 64 s in all."""
    champion = launches.champion
    proposal = champion.run.planner.served_proposal(
        champion.number, champion.configuration, launches.cases, launches.regions
    )
    if not proposal.cases:
        return None
    with open_executor(champion) as executor:
        served_s = SERVED_S * min(_MOST_CASES, len(launches.cases))
        proposal = dataclasses.replace(proposal, until_s=until_s, served_s=served_s)
        outcome = outcome_of(executor, proposal)
    if speaks_for_its_code(outcome):
        matrix.add(launches.cell, outcome, elapsed_s())
    return outcome


def launched_regions(matrix: Matrix, champion: Champion) -> list[Region]:
    """The regions in which the champion was launched at served sizes, whatever rule asked."""
    return [
        region
        for cell, outcome in matrix.cells.items()
        if cell.case.startswith(SIZES) and (cell.run, cell.trial) == champion.key
        if outcome.domain is not None
        for region in outcome.domain.regions
    ]


def refused_variants(matrix: Matrix) -> set[Cell]:
    """The variants on which a kernel is not confirmed: it failed there, or at a served size."""
    found = set()
    for cell, outcome in matrix.cells.items():
        if cell.case.startswith(VARIANT) and not outcome.ok:
            found.add(cell)
        elif cell.case.startswith(SIZES) and not outcome.ok:
            _, _, fixed = cell.case.split(" ", 2)
            found.add(cell._replace(case=f"{VARIANT}{fixed}"))
    return found
