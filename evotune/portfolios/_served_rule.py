"""From a measured matrix to the finished portfolio: kernels, rule, judgement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from evotune.portfolios._cell_measuring import cell_of, extended_domain
from evotune.portfolios._held_out_judge import (
    Cut,
    Doubted,
    judged,
    without_doubts,
    without_losses,
)
from evotune.portfolios._rule_launches import confirmed_domain, executed_rule, launched_regions
from evotune.portfolios._rule_tree import Leaf
from evotune.portfolios.matrix_store import Matrix, Point, Score
from evotune.portfolios.portfolio_file import (
    FORMAT,
    Portfolio,
    PortfolioCase,
    PortfolioKernel,
    cell_rows,
)
from evotune.portfolios.rule import RuleRegion, kernel_at, regions_of, single_case
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import Champion, has_own_check
from evotune.runs.setup import KernelSetup
from evotune.space.specs import GivenCase
from evotune.trial import Domain, Region


def learnt_rule(
    matrix: Matrix,
    setup: KernelSetup,
    champions: Sequence[Champion],
    leaves: Sequence[Leaf],
    cases: Mapping[str, Case],
) -> list[RuleRegion]:
    """The regions of the leaves, before any case judges them. `cases`: the given ones, by label."""
    chosen = {leaf.kernel for leaf in leaves if leaf.kernel is not None}
    regions = {number: _domain(matrix, champions[number], cases).regions for number in chosen}
    return regions_of(leaves, regions, exact=has_own_check(setup.planner.problem))


def cut_rule(
    regions: Sequence[RuleRegion],
    *,
    seen: Sequence[Point],
    held_out: Sequence[Point],
    drawn: Sequence[Point],
    doubted: Doubted,
) -> tuple[list[RuleRegion], list[Cut]]:
    """The regions without the parts that the judging cases (`held_out`, `drawn`) show to lose, and
    without those where a loss is expected (`doubted`). `seen`: the cases that the rule is made of.
    """
    left, cuts = without_losses(regions, held_out, seen)
    left, lost = without_losses(left, drawn, seen, drawn=True)
    left, doubts = without_doubts(left, doubted, seen)
    return left, [*cuts, *lost, *doubts]


def finished_portfolio(
    matrix: Matrix,
    setup: KernelSetup,
    champions: Sequence[Champion],
    *,
    regions: Sequence[RuleRegion],
    left: Sequence[RuleRegion],
    cuts: Sequence[Cut],
    most_kernels: int,
    seed: int,
    skipped: str,
    given: Mapping[str, GivenCase],
    cases: Mapping[str, Case],
    seen: Sequence[Point],
    held_out: Sequence[Point],
    listed: Sequence[Point],
    drawn: Sequence[Point],
    searched: Mapping[str, str],
    unmeasured: int,
    say: Callable[[str], None],
) -> Portfolio:
    """The portfolio whose rule has these `regions`, of which the cuts have `left` so much, as far
    as its kernels were executed there. Before them come cases of the list that these serve badly,
    each alone.

    `seen`: the cases that the rule is made of. `held_out`, `drawn`: the cases that judge it.
    `listed`: all of the list. All have the scores of the champions. `given`, `cases`, `searched`
    (the run of its own search): by label.
    """
    for each in cuts:
        say(f"cut: {each.words}")
    kernels = sorted({region.kernel for region in regions})
    domains = {number: _domain(matrix, champions[number], cases) for number in kernels}
    general = executed_rule(left, listed, domains)
    for region in left:
        parts = [p.words for p in general if p.kernel == region.kernel and _is_part(p, region)]
        if parts != [region.words]:
            say(f"not all of [{region.words}] was executed; left: {' and '.join(parts) or 'none'}")
    alone: list[RuleRegion] = []
    if not has_own_check(setup.planner.problem):  # else all regions are single cases
        own = {number: domain.regions for number, domain in domains.items()}
        alone = single_cases(general, listed, own)
    rule = [*alone, *general]
    used = sorted({region.kernel for region in rule})
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
            "listed": judged(listed, rule),
            "seen": judged(seen, general),
            "held_out": judged(held_out, general),
            "held_out_before": judged(held_out, regions),
            "drawn": judged(drawn, general),
            "drawn_before": judged(drawn, regions),
        },
        of_own=_of_own(champions, seen, rule, searched),
        unmeasured=unmeasured,
        cells=tuple(cell_rows(matrix)),
        alone=len(alone),
    )


def _is_part(part: RuleRegion, region: RuleRegion) -> bool:
    return part.fixed == region.fixed and set(part.cases) <= set(region.cases)


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
    launched = launched_regions(matrix, champion)
    return extended_domain(confirmed_domain(matrix, champion), champion, passed, launched)


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


# Regions that hold one case of the list each.
#
# A region ends where a case between the measured ones was lost. That leaves some won cases of the
# list to PyTorch, and others to a slower kernel. But a program has these cases, and each kernel was
# measured on them. So the best kernel serves such a case, and no case near it.
MOST: Final = 16
"""At most so many regions, and the greatest gains first, since people read the rule."""


class _Gain(NamedTuple):
    """`value`: the case's weight times ln of the speedup over that of the other regions."""

    value: float
    region: RuleRegion


def single_cases(
    regions: Sequence[RuleRegion],
    points: Sequence[Point],
    domains: Mapping[int, Sequence[Region]],
) -> list[RuleRegion]:
    """The regions that come before `regions`: of `points` that no kernel serves there, or a kernel
    that is surely slower than another one. `domains`: those of the kernels that may serve."""
    found = sorted(
        (gain for point in points for gain in _gain(regions, point, domains)),
        key=lambda gain: (-gain.value, gain.region.cases),
    )
    return [gain.region for gain in found[:MOST]]


def _gain(
    regions: Sequence[RuleRegion], point: Point, domains: Mapping[int, Sequence[Region]]
) -> Iterator[_Gain]:
    served = kernel_at(regions, point)
    now = 1.0 if served is None else _speedup(point.scores[served])
    able = [
        (score.low, kernel, domain)
        for kernel, own in domains.items()
        for domain in own
        if (score := point.scores[kernel]) is not None
        and score.won
        and point.place.is_in(domain.fixed, domain.ranges)
    ]
    if not able:
        return
    low, kernel, domain = max(able, key=lambda each: each[:2])
    if low > now:
        speedup = _speedup(point.scores[kernel])
        yield _Gain(point.weight * math.log(speedup / now), single_case(point, kernel, domain, low))


def _speedup(score: Score | None) -> float:
    """Against PyTorch, which serves where the gate refused the kernel."""
    return score.speedup if score is not None and score.speedup > 0.0 else 1.0
