"""Ends the regions of a rule where its kernels were executed.

Between measured cases a kernel may be wrong at one length, or where two sizes meet. A region holds
no length that was not executed, and no two sizes that were not executed together, by bands. The
champion's domain says which were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from evotune.portfolios.points import Point
from evotune.portfolios.rule import RuleRegion
from evotune.problems.executed_sizes import (
    Ranges,
    executed_within,
    joined_lengths,
    joined_pairs,
    tightened,
)
from evotune.problems.problem import Place
from evotune.trial import Domain, Region


def executed_rule(
    rule: Sequence[RuleRegion], points: Sequence[Point], domains: Mapping[int, Domain]
) -> list[RuleRegion]:
    """The executed parts of the regions, each with some of their cases, which are among the
    `points`. A case that lies in no part is left out. A region of a single case stays as it is,
    since the gate checked that case. So does one whose kernel has no executed lengths, because an
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
    """What the kernel with this domain has executed with the fixed values of the region, by all its
    binaries together."""
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
