"""Makes the finished portfolio from a measured matrix: kernels, rule, judgement.

The kernels of a rule are launched at the sizes that they serve by the rule. A run's confirmation
executes only the lengths near its own case, whereas a rule reaches from one case of the list to the
next. So its kernels are launched at the lengths in between before they serve any of them. The
outcome is stored in the matrix, next to the cells.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import msgspec

from evotune.portfolios.cell_measuring import OpenExecutor, baselines_of, cell_of, extended_domain
from evotune.portfolios.matrix_store import SIZES, VARIANT, Cell, Matrix, Point, Score
from evotune.portfolios.portfolio_file import (
    FORMAT,
    Portfolio,
    PortfolioCase,
    PortfolioKernel,
    cell_rows,
)
from evotune.portfolios.rule import (
    Cut,
    Doubted,
    Leaf,
    RuleRegion,
    judged,
    kernel_at,
    regions_of,
    single_case,
    without_doubts,
    without_losses,
)
from evotune.problems import UserProblem
from evotune.problems.executed_sizes import (
    Ranges,
    executed_within,
    joined_lengths,
    joined_pairs,
    near_ranges,
    tightened,
)
from evotune.problems.problem import Case, Place
from evotune.runs.confirmed_champions import Champion, has_own_check
from evotune.runs.confirming import outcome_of
from evotune.runs.setup import KernelSetup
from evotune.space.specs import GivenCase
from evotune.trial import CUT_SHORT, Domain, Outcome, Region, Value
from evotune.workers.executor import SERVED_S, TIMED
from evotune.workers.in_flight import speaks_for_its_code


def learnt_rule(
    matrix: Matrix,
    setup: KernelSetup,
    champions: Sequence[Champion],
    leaves: Sequence[Leaf],
    cases: Mapping[str, Case],
) -> list[RuleRegion]:
    """The regions of the leaves, before cases judge them. `cases`: the given cases, by label."""
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
    """The portfolio whose rule has these `regions`, reduced by the cuts to what is `left`, and to
    the sizes at which their kernels were executed. Single regions for cases of the list that these
    serve badly come first.

    `seen`: the cases from which the rule is made. `held_out`, `drawn`: the cases on which it is
    judged. `listed`: all cases of the list. All have the champions' scores. `given`, `cases`,
    `searched` (the run of a case's own search): by label.
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
# A region ends before a lost case between the measured ones. That leaves some won cases of the list
# to PyTorch, and others to a slower kernel. But a program has these cases, and each kernel was
# measured on them. So the best kernel serves such a case, and no case near it.
MOST: Final = 16
"""The most regions of single cases. Those with the greatest gains come first. It is limited because
people read the rule."""


class _Gain(NamedTuple):
    """`value`: the case's weight times ln of the speedup over that of the other regions."""

    value: float
    region: RuleRegion


def single_cases(
    regions: Sequence[RuleRegion],
    points: Sequence[Point],
    domains: Mapping[int, Sequence[Region]],
) -> list[RuleRegion]:
    """The regions of single cases that come before `regions`: those of `points` that no kernel
    serves by the regions, or that a kernel serves that is surely slower than another one.
    `domains`: the domains of the kernels that may serve."""
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
    """Over PyTorch, which serves the case if the gate refused the kernel."""
    return score.speedup if score is not None and score.speedup > 0.0 else 1.0


_MOST_CASES = 8
"""The launches may take as long as single runs take for the served sizes of this many cases."""
_R = TypeVar("_R", RuleRegion, Region)


@dataclass(frozen=True, slots=True)
class SizeLaunches:
    """Launches of a champion at the sizes of these regions, which share all fixed values. The
    champion was right on `cases`, which lie in the regions. The regions also contain what the
    champion's confirmations executed."""

    champion: Champion
    cases: Sequence[Case]
    regions: Sequence[Region]

    @property
    def fixed(self) -> Mapping[str, Value]:
        return self.regions[0].fixed

    @property
    def cell(self) -> Cell:
        """The cell of these launches. Other regions or cases have another cell."""
        asked = [[case.label for case in self.cases], msgspec.to_builtins(list(self.regions))]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
        fixed = json.dumps(dict(self.fixed), sort_keys=True)
        return Cell(f"{SIZES}{digest} {fixed}", *self.champion.key)

    def missing(self, matrix: Matrix, *, has_time: bool) -> bool:
        """Whether the launches must be made: they were not made before, or there was no time for
        all of them and there is time now."""
        known = matrix.cells.get(self.cell)
        return known is None or (CUT_SHORT in known.flags and has_time)


def rule_launches(
    matrix: Matrix,
    champions: Sequence[Champion],
    rule: Sequence[RuleRegion],
    cases: Mapping[str, Case],
) -> Iterator[SizeLaunches]:
    """The launches for the rule. `cases`: the cases of the list, by label. A region of a single
    case needs no launches, because the gate checked that case."""
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
    """Makes the launches and stores their outcome; None if the kernel can compute none of the
    sizes. They end at `until_s` on the monotonic clock, or after as long as runs of the cases would
    take: 8 s for each case, and 64 s in all."""
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
    """The regions in which the champion was launched at served sizes, for any rule."""
    return [
        region
        for cell, outcome in matrix.cells.items()
        if cell.case.startswith(SIZES) and (cell.run, cell.trial) == champion.key
        if outcome.domain is not None
        for region in outcome.domain.regions
    ]


def refused_variants(matrix: Matrix) -> set[Cell]:
    """The variants on which a kernel is not confirmed because it failed on the variant, or at a
    served size."""
    found = set()
    for cell, outcome in matrix.cells.items():
        if cell.case.startswith(VARIANT) and not outcome.ok:
            found.add(cell)
        elif cell.case.startswith(SIZES) and not outcome.ok:
            _, _, fixed = cell.case.split(" ", 2)
            found.add(cell._replace(case=f"{VARIANT}{fixed}"))
    return found


# Limits the regions of a rule to sizes at which its kernels were executed.
#
# Between measured cases a kernel may be wrong at one length, or for a pair of sizes. A region holds
# no length that was not executed, and no two sizes that were not executed together, by bands. The
# champion's domain says which were.
def executed_rule(
    rule: Sequence[RuleRegion], points: Sequence[Point], domains: Mapping[int, Domain]
) -> list[RuleRegion]:
    """The executed parts of the regions, each with some of their cases, which are among the
    `points`. A case that lies in no part is left out. A region of a single case is not changed,
    because the gate checked that case. Nor is one whose kernel has no executed lengths because an
    older evotune confirmed it."""
    found: list[RuleRegion] = []
    for region in rule:
        known = known_region(region, domains[region.kernel])
        if region.exact or known.executed is None:
            found.append(region)
        else:
            found += _parts(region, known, [p for p in points if p.label in region.cases])
    return found


def known_region(region: RuleRegion | Region, domain: Domain) -> Region:
    """The region that a kernel with this domain has executed with the fixed values of `region`,
    with all its binaries together."""
    own = [each for each in domain.regions if each.fixed == region.fixed]
    lengths = [each.executed for each in own if each.executed is not None]
    return Region(
        region.fixed,
        region.ranges,
        sum(each.cases for each in own),
        joined_pairs(*(each.pairs for each in own)),
        joined_lengths(*lengths) if lengths else None,
    )


def _parts(region: RuleRegion, known: Region, points: Sequence[Point]) -> Iterator[RuleRegion]:
    """Cases are taken together in the order of their sizes, as long as all that lies between them
    was executed."""
    ranges = tightened(region.ranges)
    groups: list[list[Point]] = []
    if points and _within(ranges, points, known) is not None:
        groups, points = [list(points)], ()
    for point in sorted(points, key=lambda point: (tuple(point.features.values()), point.label)):
        joined = (g for g in groups if _within(ranges, [*g, point], known) is not None)
        if (group := next(joined, None)) is not None:
            group.append(point)
        elif _within(ranges, [point], known) is not None:
            groups.append([point])
    for group in groups:
        clipped = _within(ranges, group, known)
        assert clipped is not None
        narrowed = [n for n in group[0].place.ranged if n in ranges and clipped[n] != ranges[n]]
        yield msgspec.structs.replace(
            region,
            ranges=clipped,
            shown=tuple(dict.fromkeys((*region.shown, *narrowed))),
            cases=tuple(point.label for point in group),
        )


def _within(ranges: Ranges, points: Sequence[Point], known: Region) -> Ranges | None:
    places = [Place(p.place.fixed, {**p.features, **p.place.ranged}) for p in points]
    return executed_within(ranges, places, points[0].place.ranged.keys(), known)


# Confirms kernels on variants that their own runs did not tune.
#
# A run's confirmation tests edge shapes of all masks, and random shapes of the tuned mask only. A
# rule may give a kernel cases of the other mask: before that, the kernel must pass a confirmation
# with it. The matrix stores the outcome together with the cells.
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
    """The missing confirmations: a kernel by its number, and a case on which to confirm it.

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
    """Runs all checks of a confirmation, with the case in place of those for which the run was
    tuned."""
    other = champion.run.with_cases([given])
    proposal = other.planner.proposal(champion.number, champion.configuration, confirm=True)
    with open_executor(dataclasses.replace(champion, run=other)) as executor:
        executor.baselines = baselines_of(matrix)
        outcome = outcome_of(executor, dataclasses.replace(proposal, audit=True))
    if speaks_for_its_code(outcome):
        matrix.add(variant_cell(champion, champion.place(case).fixed), outcome, elapsed_s())
    return outcome


def confirmed_domain(matrix: Matrix, champion: Champion) -> Domain:
    """The champion's domain in which random shapes were tested, from its own confirmation and from
    those on other variants."""
    regions = [region for region in champion.domain.regions if is_tuned(champion, region.fixed)]
    for region in champion.domain.regions:
        outcome = matrix.cells.get(variant_cell(champion, region.fixed))
        if region not in regions and outcome is not None and outcome.domain is not None:
            regions += [each for each in outcome.domain.regions if each.fixed == region.fixed]
    return msgspec.structs.replace(champion.domain, regions=tuple(regions))
