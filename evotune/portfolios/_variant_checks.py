"""Confirms kernels on variants that their own runs did not tune.

A run's confirmation tests edge shapes of all masks, and random shapes of the tuned one alone. A
rule may give a kernel cases of the other mask: before it does, the kernel passes a confirmation
there as well. Its outcome is kept in the matrix, beside the cells.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from evotune.portfolios._cell_measuring import OpenExecutor, baselines_of
from evotune.portfolios._rule_tree import Leaf
from evotune.portfolios.matrix_store import VARIANT, Cell, Matrix
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import Champion
from evotune.runs.confirming import outcome_of
from evotune.space.specs import GivenCase
from evotune.trial import Domain, Outcome, Value
from evotune.workers.executor import TIMED
from evotune.workers.in_flight import speaks_for_its_code


def variant_cell(champion: Champion, fixed: Mapping[str, Value]) -> Cell:
    return Cell(f"{VARIANT}{json.dumps(dict(fixed), sort_keys=True)}", *champion.key)


def is_tuned(champion: Champion, fixed: Mapping[str, Value]) -> bool:
    """Whether the champion's own confirmation tested random shapes with these values."""
    timed = champion.run.setup.cases[TIMED]
    return any(champion.place(case).fixed == fixed for case in timed)


def is_confirmed(matrix: Matrix, champion: Champion, fixed: Mapping[str, Value]) -> bool:
    outcome = matrix.cells.get(variant_cell(champion, fixed))
    return is_tuned(champion, fixed) or (outcome is not None and outcome.ok)


def variants_needed(
    matrix: Matrix, champions: Sequence[Champion], leaves: Sequence[Leaf], cases: Mapping[str, Case]
) -> Iterator[tuple[int, Case]]:
    """The confirmations that are missing: a kernel by its number, and a case to confirm it on.

    A kernel must be confirmed with the fixed values of every case of its leaves that it can run.
    For each kernel and each set of fixed values the case is the one of the list (`cases`, by label)
    with the most operations.
    """
    found: dict[tuple[int, str], tuple[int, Case]] = {}
    for leaf in leaves:
        for point in leaf.points if leaf.kernel is not None else ():
            assert leaf.kernel is not None
            champion = champions[leaf.kernel]
            score = point.scores[leaf.kernel]
            is_drawn = point.label not in cases
            if is_drawn or score is None or is_confirmed(matrix, champion, point.place.fixed):
                continue
            key = (leaf.kernel, json.dumps(dict(point.place.fixed), sort_keys=True))
            flops = champion.problem.flops(cases[point.label])
            if key not in found or flops > found[key][0]:
                found[key] = flops, cases[point.label]
    for (kernel, _), (_, case) in found.items():
        yield kernel, case


def confirm_variant(
    matrix: Matrix,
    champion: Champion,
    case: Case,
    given: GivenCase,
    *,
    elapsed_s: Callable[[], float],
    open_executor: OpenExecutor,
) -> Outcome:
    """All checks of a confirmation, with the case in place of those that the run was tuned for."""
    other = champion.run.with_cases([given])
    proposal = other.planner.proposal(champion.number, champion.configuration, confirm=True)
    with open_executor(dataclasses.replace(champion, run=other)) as executor:
        executor.baselines = baselines_of(matrix)
        outcome = outcome_of(executor, dataclasses.replace(proposal, audit=True))
    if speaks_for_its_code(outcome):
        matrix.add(variant_cell(champion, champion.place(case).fixed), outcome, elapsed_s())
    return outcome


def confirmed_domain(matrix: Matrix, champion: Champion) -> Domain:
    """The champion's domain, where random shapes were tested: of its own confirmation and of those
    on other variants."""
    regions = [region for region in champion.domain.regions if is_tuned(champion, region.fixed)]
    for region in champion.domain.regions:
        outcome = matrix.cells.get(variant_cell(champion, region.fixed))
        if region not in regions and outcome is not None and outcome.domain is not None:
            regions += [each for each in outcome.domain.regions if each.fixed == region.fixed]
    return msgspec.structs.replace(champion.domain, regions=tuple(regions))
