"""Cases of the list that the other regions of a rule serve badly have a region of their own."""

from __future__ import annotations

from typing import Any

import pytest

from evotune.portfolios import served_rule as module
from evotune.portfolios.matrix_store import point_of
from evotune.portfolios.rule import (
    RuleRegion,
    judged,
    kernel_at,
    learnt_leaves,
    regions_of,
    without_losses,
)
from evotune.portfolios.served_rule import single_cases
from evotune.problems import Tensor, UserProblem
from evotune.trial import Region
from tests.portfolios.made_up import domain, point, score, scored

LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def test_a_won_case_that_a_cut_left_to_pytorch_is_served_alone() -> None:
    points = scored([point(n) for n in LENGTHS], lambda p: 1.4)
    lost = point(700).with_scores([score(0.9)])
    regions = regions_of(learnt_leaves(points, [0]), {0: (domain(),)})
    general, _ = without_losses(regions, [lost], points)
    left = [p for p in points if kernel_at(general, p) is None]
    assert left
    found = single_cases(general, points, {0: (domain(),)})
    assert {region.cases[0] for region in found} == {p.label for p in left}
    assert all(region.exact and region.speedup_low == 1.4 for region in found)
    rule = [*found, *general]
    assert judged(points, rule).of_best == pytest.approx(1.0)
    assert kernel_at(rule, lost) is None


def test_a_single_case_holds_nothing_near_it() -> None:
    (own,) = scored([point(256, batch=4)], lambda p: 1.3)
    (region,) = single_cases([], [own], {0: (domain(),)})
    assert region.holds(own)
    assert region.words == "head_dim 64, not causal, batch 4, heads 8, seq_len_q 256"
    assert region.ranges["softmax_scale"] == (0.01, 1.0)
    others = [
        point(257, batch=4),
        point(256, batch=4, keys=255),
        point(256, batch=2, heads=16),
        point(256, batch=4, kv_heads=4),
        point(256, batch=4, causal=True),
        point(256, batch=4, head_dim=128),
    ]
    assert not any(region.holds(other) for other in others)


def test_a_case_of_other_lengths_tells_both() -> None:
    (own,) = scored([point(16, keys=1024)], lambda p: 1.3)
    (region,) = single_cases([], [own], {0: (domain(),)})
    assert region.words.endswith("batch 1, heads 8, seq_len_q 16, seq_len_k 1024")


def test_cases_of_as_many_heads_in_all_have_other_words() -> None:
    points = [
        point(256, batch=4, heads=8),
        point(256, batch=2, heads=16, kv_heads=8),
        point(256, batch=4, heads=8, kv_heads=2),
    ]
    found = single_cases([], scored(points, lambda p: 1.3), {0: (domain(),)})
    assert len({region.words for region in found}) == 3
    assert any(
        region.words.endswith("batch 2, heads 16, group 2, seq_len_q 256") for region in found
    )


class Named(UserProblem):
    """Its sizes have the names of attention's other quantities."""

    sizes = ("elements", "softmax_scale")

    def inputs(self, **sizes: int) -> dict[str, tuple[int, ...] | Tensor]:
        return {"x": (sizes["elements"], sizes["softmax_scale"])}

    def outputs(self, **sizes: int) -> dict[str, tuple[int, ...] | Tensor]:
        return {"out": (sizes["elements"], sizes["softmax_scale"])}

    def operations(self, **sizes: int) -> int:
        return sizes["elements"]

    def compute(self, **inputs: Any) -> Any:
        raise NotImplementedError


def test_a_users_problem_may_have_sizes_of_any_name() -> None:
    problem = Named("float32")
    cases = [problem.case({"elements": n, "softmax_scale": 3}, {}) for n in (1024, 4096)]
    own, other = (point_of(problem, case).with_scores([score(1.3)]) for case in cases)
    ranges = {"elements": (1, 1 << 20), "softmax_scale": (1, 9)}
    (region,) = single_cases([], [own], {0: (Region(own.place.fixed, ranges, 9),)})
    assert region.holds(own)
    assert not region.holds(other)


@pytest.mark.parametrize(("low", "served"), [(1.25, 1), (1.15, 0)])
def test_another_kernel_serves_only_where_it_is_surely_faster(low: float, served: int) -> None:
    own = point(256).with_scores([score(1.2), score(1.3, low)])
    general = [RuleRegion(0, domain().fixed, domain().ranges, (), 1.2, (own.label,))]
    domains = {0: (domain(),), 1: (domain(),)}
    rule = [*single_cases(general, [own], domains), *general]
    assert kernel_at(rule, own) == served


@pytest.mark.parametrize("own", [score(0.0), score(1.02, 0.99), None])
def test_a_kernel_that_did_not_win_serves_no_case(own: object) -> None:
    assert not single_cases([], [point(256).with_scores([own])], {0: (domain(),)})  # type: ignore[list-item]


def test_a_kernel_serves_only_where_it_was_checked() -> None:
    (own,) = scored([point(256, causal=True)], lambda p: 1.3)
    assert not single_cases([], [own], {0: (domain(),)})
    assert single_cases([], [own], {0: (domain(causal=True),)})


def test_the_greatest_gains_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    speedups = {128: 1.1, 256: 1.2, 512: 1.3}
    points = scored(
        [point(128, weight=9), point(256), point(512)],
        lambda p: speedups[p.features["seq_len_q"]],
    )
    found = single_cases([], points, {0: (domain(),)})
    assert [region.ranges["seq_len_q"][0] for region in found] == [128, 512]
