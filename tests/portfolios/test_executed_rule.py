"""Regions of a rule end where their kernel was not executed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evotune.portfolios.matrix_store import Point
from evotune.portfolios.rule import RuleRegion, learnt_leaves, regions_of
from evotune.portfolios.served_rule import executed_rule
from evotune.trial import Domain, ExecutedLengths

from .made_up import domain, point, scored

EVERYTHING = {"batch": range(8), "heads": range(8), "group": range(5), "seq_len_q": range(14),
              "seq_len_k": range(14)}  # fmt: skip
ALL_PAIRS = {
    f"{one} {other}": tuple((a, b) for a in EVERYTHING[one] for b in EVERYTHING[other])
    for one in EVERYTHING
    for other in EVERYTHING
    if one < other
}


def known(*ranges: tuple[int, int], **pairs: tuple[tuple[int, int], ...]) -> Domain:
    """The domain of a kernel whose queries and keys were executed in these ranges, with all pairs
    of sizes but those given."""
    executed = tuple(ExecutedLengths(name, {"group": 1}, ranges)
                     for name in ("seq_len_q", "seq_len_k"))  # fmt: skip
    without = {name.replace("__", " "): met for name, met in pairs.items()}
    region = msgspec.structs.replace(domain(), executed=executed, pairs={**ALL_PAIRS, **without})
    return Domain("GPU", 1, (region,))


def learnt(points: Sequence[Point]) -> list[RuleRegion]:
    return regions_of(learnt_leaves(points, [0]), {0: [domain()]})


def test_a_region_that_was_executed_as_a_whole_stays_one() -> None:
    points = scored([point(n) for n in (128, 256, 2048)], lambda p: 1.4)
    (region,) = learnt(points)
    (found,) = executed_rule([region], points, {0: known((1, 4000))})
    assert found.words == region.words
    assert found.ranges["seq_len_q"] == (116, 2252)
    assert found.ranges["seq_len_k"] == (105, 2477)  # a tenth more, by the ratio of the lengths
    assert found.cases == region.cases


def test_a_gap_divides_a_region() -> None:
    points = scored([point(n) for n in (128, 256, 2048)], lambda p: 1.4)
    found = executed_rule(learnt(points), points, {0: known((1, 999), (1001, 2047), (2049, 4000))})
    (part,) = found
    assert part.ranges["seq_len_q"] == (116, 999)
    assert part.cases == ("(1,8,128,64) full", "(1,8,256,64) full")
    found = executed_rule(learnt(points), points, {0: known((1, 999), (1001, 4000))})
    assert [part.ranges["seq_len_q"] for part in found] == [(116, 999), (1001, 2252)]


def test_two_sizes_that_were_never_executed_together_end_it() -> None:
    points = scored([point(n, batch=b) for n in (128, 256) for b in (1, 2)], lambda p: 1.4)
    (region,) = learnt(points)
    (found,) = executed_rule([region], points, {0: known((1, 4000))})
    assert found.ranges["batch"] == (1, 17)
    met = tuple(pair for pair in ALL_PAIRS["batch heads"] if pair[0] <= 2)
    (found,) = executed_rule([region], points, {0: known((1, 4000), batch__heads=met)})
    assert found.ranges["batch"] == (1, 3)
    assert "batch 1 to 3" in found.words
    assert set(found.cases) == set(region.cases)


def test_of_two_sizes_only_the_one_that_has_to_end_does() -> None:
    """No length was executed with many heads: heads end, and lengths keep their tenth."""
    points = scored([point(n, batch=b) for n in (128, 256) for b in (1, 2)], lambda p: 1.4)
    met = tuple(pair for pair in ALL_PAIRS["heads seq_len_q"] if pair[0] <= 4)
    (region,) = learnt(points)
    (found,) = executed_rule([region], points, {0: known((1, 4000), heads__seq_len_q=met)})
    assert found.ranges["heads"] == (1, 15)
    assert found.ranges["seq_len_q"] == region.ranges["seq_len_q"] == (116, 281)


def test_a_kernel_of_an_older_run_keeps_its_region() -> None:
    points = scored([point(n) for n in (128, 256)], lambda p: 1.4)
    rule = learnt(points)
    assert executed_rule(rule, points, {0: Domain("GPU", 1, (domain(),))}) == rule
