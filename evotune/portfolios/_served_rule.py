"""From a measured matrix to the finished portfolio: kernels, rule, judgement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from evotune.engine.confirmed_champions import Champion, has_own_check
from evotune.engine.setup import KernelSetup
from evotune.portfolios._cell_plans import cell_of, extended_domain
from evotune.portfolios._held_out_judge import judged, without_losses
from evotune.portfolios._rule_tree import Leaf
from evotune.portfolios._variant_checks import confirmed_domain
from evotune.portfolios.matrix_store import Matrix
from evotune.portfolios.points import Point
from evotune.portfolios.portfolio_file import (
    FORMAT,
    Portfolio,
    PortfolioCase,
    PortfolioKernel,
    cell_rows,
)
from evotune.portfolios.rule import RuleRegion, kernel_at, regions_of
from evotune.problems.problem import Case
from evotune.space.specs import GivenCase
from evotune.trial import Domain


def finished_portfolio(
    matrix: Matrix,
    setup: KernelSetup,
    champions: Sequence[Champion],
    *,
    leaves: Sequence[Leaf],
    most_kernels: int,
    seed: int,
    skipped: str,
    given: Mapping[str, GivenCase],
    cases: Mapping[str, Case],
    seen: Sequence[Point],
    judges: Sequence[Point],
    searched: Mapping[str, str],
    unmeasured: int,
    say: Callable[[str], None],
) -> Portfolio:
    """The portfolio whose rule has these `leaves`. `seen` and `judges`: the cases that the rule is
    made of, and those that judge it, with the scores of the champions. `given`, `cases`, `searched`
    (the run of its own search): by label."""
    chosen = sorted({leaf.kernel for leaf in leaves if leaf.kernel is not None})
    domains = {number: _domain(matrix, champions[number], cases) for number in chosen}
    problem = setup.planner.problem
    checked_only = has_own_check(problem)
    regions = regions_of(leaves, {n: d.regions for n, d in domains.items()}, exact=checked_only)
    before = judged(judges, regions)
    rule, cuts = without_losses(regions, judges, seen)
    for each in cuts:
        left = f"left: {each.after}" if each.after else "nothing of it is left"
        say(
            f"{each.case}, held out, is {each.speedup:.3f}x there: cut out of {each.before}; {left}"
        )
    used = [number for number in chosen if any(region.kernel == number for region in rule)]
    baselines = matrix.store.meta("baselines", {})
    seen_labels = {point.label for point in seen}
    return Portfolio(
        format=FORMAT,
        space=setup.name,
        device=setup.profile.name,
        problem=setup.problem_spec.name,
        dtype=setup.problem_spec.dtype,
        most_kernels=most_kernels,
        seed=seed,
        skipped=skipped,
        cases=tuple(
            PortfolioCase(
                label,
                given[label],
                label not in seen_labels,
                str(baselines.get(label, "")),
                searched.get(label, ""),
            )
            for label in cases
        ),
        kernels=tuple(
            PortfolioKernel(
                champions[number].run.run.id,
                champions[number].number,
                champions[number].configuration.to_json(),
                domains[number],
            )
            for number in used
        ),
        rule=_renumbered(rule, used),
        cuts=tuple(cuts),
        figures={
            "seen": judged(seen, rule),
            "held_out": judged(judges, rule),
            "held_out_before": before,
        },
        of_own=_of_own(champions, seen, rule, searched),
        unmeasured=unmeasured,
        cells=tuple(cell_rows(matrix)),
    )


def _renumbered(rule: Sequence[RuleRegion], used: Sequence[int]) -> tuple[RuleRegion, ...]:
    return tuple(
        msgspec.structs.replace(region, kernel=used.index(region.kernel)) for region in rule
    )


def _domain(matrix: Matrix, champion: Champion, cases: Mapping[str, Case]) -> Domain:
    """The champion's domain with the cases on which the matrix found it right."""
    passed = [
        case
        for case in cases.values()
        if (outcome := matrix.cells.get(cell_of(champion, case))) is not None and outcome.ok
    ]
    return extended_domain(confirmed_domain(matrix, champion), champion, passed)


def _of_own(
    champions: Sequence[Champion],
    seen: Sequence[Point],
    rule: Sequence[RuleRegion],
    searched: Mapping[str, str],
) -> float | None:
    """The geometric mean of the rule's speedup / the own champion's, over the searched cases."""
    logs = []
    for point in seen:
        own = [n for n, c in enumerate(champions) if c.run.run.id == searched.get(point.label)]
        for number in own:
            kernel = kernel_at(rule, point)
            served = 0.0 if kernel is None else point.gain(kernel)
            logs.append(served - point.gain(number))
    return math.exp(sum(logs) / len(logs)) if logs else None
