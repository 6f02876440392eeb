"""A rule does not serve a case that was not tried and that its kernel is expected to lose."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from evotune.backends.cpu import CpuBackend
from evotune.portfolios.drawn_cases import DrawnCases
from evotune.portfolios.matrix_store import Point, point_of
from evotune.portfolios.rule import Leaf, RuleRegion, kernel_at, regions_of, without_doubts
from evotune.problems.problem import Case
from evotune.space.specs import GivenCase

from .made_up import PROBLEM, domain, point, scored
from .pretended import PretendedDevice, PretendedSearch, built, by_rows, softmax_request
from .pretended import softmax_space as made_space
from .test_drawn_cases import LISTED, SMS, always, of_tiles


def listed_rule(speedup: Callable[[Point], float]) -> tuple[DrawnCases, list[Point], RuleRegion]:
    """The draws, the listed cases, and a region around those that a kernel won."""
    shapes = [{"batch": b, "heads": 16, "seq_len": n, "head_dim": 64} for b, n in LISTED]
    cases = [PROBLEM.case(shape, {"causal": False}) for shape in shapes]
    given = {c.label: GivenCase(s, {"causal": False}) for c, s in zip(cases, shapes, strict=True)}
    listed = scored([point_of(PROBLEM, case) for case in cases], speedup)
    won = tuple(point for point in listed if point.gain(0) > 0.0)
    (region,) = regions_of([Leaf(0, won)], {0: [domain()]})
    return DrawnCases(PROBLEM, given, 0, SMS), listed, region


def losses(rule: Sequence[RuleRegion], speedup: Callable[[Point], float]) -> int:
    """How many of 1,000 random cases the rule gives to the kernel that loses them."""
    rng = random.Random(5)
    sizes = [(rng.randint(128, 8192), rng.randint(1, 8)) for _ in range(1000)]
    others = [point(length, batch=batch, heads=16, kv_heads=16) for length, batch in sizes]
    others = scored(others, speedup)
    return sum(kernel_at(rule, each) is not None and speedup(each) < 0.98 for each in others)


@pytest.mark.soak
def test_a_region_ends_before_a_loss_that_the_model_expects() -> None:
    draws, listed, region = listed_rule(of_tiles)
    rule, cuts = without_doubts(
        [region], lambda each: draws.doubted(each, listed, lambda kernel, case: True), listed
    )
    before, after = losses([region], of_tiles), losses(rule, of_tiles)
    assert before > 20
    assert after < 0.3 * before
    (cut,) = cuts
    assert cut.predicted
    assert cut.speedup < 0.98
    assert f"{cut.case}, drawn, was not tried and may have 0." in cut.words
    assert all(each.ranges != region.ranges for each in rule)


def test_a_region_without_doubts_stays() -> None:
    draws, listed, region = listed_rule(always(1.5))
    rule, cuts = without_doubts(
        [region], lambda each: draws.doubted(each, listed, lambda kernel, case: True), listed
    )
    assert (rule, cuts) == ([region], [])


def test_a_case_that_was_tried_or_cannot_run_is_no_doubt() -> None:
    draws, listed, region = listed_rule(of_tiles)
    found = draws.doubted(region, listed, lambda kernel, case: True)
    assert found is not None
    assert draws.doubted(region, listed, lambda kernel, case: False) is None
    tried = scored([found[0]], always(1.2))
    again = draws.doubted(region, [*listed, *tried], lambda kernel, case: True)
    assert again is None or again[0].label != found[0].label


def test_a_finished_portfolio_has_no_part_that_is_expected_to_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuBackend, "exported_call_us", 0.0)
    doubted: list[str] = []

    def doubt(
        self: DrawnCases,
        region: RuleRegion,
        tried: Sequence[Point],
        can_run: Callable[[int, Case], bool],
    ) -> tuple[Point, float] | None:
        (most,) = [p for p in tried if p.label == max(region.cases, key=len)][:1]
        if len(region.cases) == 1 or doubted:
            return None
        doubted.append(most.label)
        return most, 0.9

    monkeypatch.setattr(DrawnCases, "doubted", doubt)
    said: list[str] = []
    space = made_space(tmp_path)
    found = built(
        softmax_request(tmp_path, space, held_out=0.0),
        PretendedSearch(space, by_rows),
        PretendedDevice(lambda configuration, case: 1.5),
        said.append,
    )
    (cut,) = found.cuts
    assert cut.predicted
    assert any(line.startswith(f"cut: {doubted[0]}, drawn, was not tried") for line in said)
    general = [region for region in found.rule if not region.exact]
    assert not any(doubted[0] in region.cases for region in general)
