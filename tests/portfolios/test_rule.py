"""The rule: regions that serve what the matrix says, and nothing that lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evotune.portfolios.matrix_store import Point, point_of
from evotune.portfolios.rule import (
    RuleRegion,
    held_out_labels,
    judged,
    kernel_at,
    learnt_leaves,
    regions_of,
    without_losses,
)
from evotune.trial import Region
from tests.portfolios.made_up import PROBLEM, RANGES, domain, point, score, scored

LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def rule(points: list[Point], *domains: Region) -> list[RuleRegion]:
    kernels = range(len(points[0].scores))
    leaves = learnt_leaves(points, list(kernels))
    return regions_of(leaves, {kernel: domains or (domain(),) for kernel in kernels})


def test_one_kernel_that_wins_everywhere_is_one_region() -> None:
    points = scored([point(n) for n in LENGTHS], lambda p: 1.4)
    (region,) = rule(points)
    assert region.ranges["seq_len_q"] == (116, 4505)
    assert region.ranges["batch_heads"] == (8, 8)
    assert region.ranges["length_ratio"] == (0.9, 1.1)
    assert region.ranges["group"] == (1, 1)
    assert region.ranges["softmax_scale"] == (0.01, 1.0)
    assert region.speedup_low == 1.4
    assert region.words == "head_dim 64, not causal, batch*heads 8, seq_len_q 116 to 4505"
    assert kernel_at([region], scored([point(3000)], lambda p: 1.0)[0]) == 0


def test_two_kernels_share_the_lengths_up_to_the_border_between_them() -> None:
    points = scored(
        [point(n) for n in LENGTHS],
        lambda p: 1.5 if p.features["seq_len_q"] <= 512 else 1.1,
        lambda p: 1.1 if p.features["seq_len_q"] <= 512 else 1.5,
    )
    found = {region.kernel: region.ranges["seq_len_q"] for region in rule(points)}
    assert found == {0: (116, 724), 1: (725, 4505)}


def test_a_kernel_for_another_head_size_has_its_own_region() -> None:
    points = scored(
        [point(n, head_dim=d, causal=c) for n in LENGTHS for d in (64, 128) for c in (False, True)],
        lambda p: 1.5 if p.place.fixed["head_dim"] == 64 else None,
        lambda p: 1.3 if p.place.fixed["head_dim"] == 128 else None,
    )
    domains = [domain(head_dim=d, causal=c) for d in (64, 128) for c in (False, True)]
    leaves = learnt_leaves(points, [0, 1])
    found = regions_of(leaves, {0: domains[:2], 1: domains[2:]})
    assert {(r.kernel, r.fixed["head_dim"], r.fixed["causal"]) for r in found} == {
        *((0, 64, causal) for causal in (False, True)),
        *((1, 128, causal) for causal in (False, True)),
    }
    assert all(kernel_at(found, p) == (p.place.fixed["head_dim"] == 128) for p in points)


def test_other_group_ratios_and_length_ratios_are_not_served() -> None:
    (region,) = rule(scored([point(n) for n in LENGTHS], lambda p: 1.4))
    assert not region.holds(point(512, kv_heads=2))
    assert not region.holds(point(512, keys=1024))
    assert region.holds(point(512, keys=550))
    assert not region.holds(point(512, batch=2))


@pytest.mark.parametrize("sizes", [[(8, 64, 512)], [(4, 32, 128)], [(1, 64, 64), (8, 64, 512)]])
def test_sizes_that_happen_to_be_the_same_number_bound_a_region_each(
    sizes: list[tuple[int, int, int]],
) -> None:
    points = [
        point(length, batch=batch, heads=heads, kv_heads=heads) for batch, heads, length in sizes
    ]
    (region,) = rule(scored(points, lambda p: 1.4))
    assert all(region.holds(p) for p in points)
    assert "batch*heads" in region.words
    assert "seq_len_q" in region.words
    batch, heads, length = sizes[-1]
    far = point(64 * length, batch=batch, heads=heads, kv_heads=heads)
    assert not region.holds(far)
    assert not region.holds(point(length, batch=16 * batch, heads=heads, kv_heads=heads))


def test_sizes_that_are_the_same_number_end_at_the_border_between_two_kernels() -> None:
    """As of square matrices: a square between the measured ones is served by one of the two."""
    points = scored(
        [point(n, batch=n // 64, heads=64, kv_heads=64, keys=2 * n) for n in (64, 512)],
        lambda p: 1.5 if p.features["seq_len_q"] == 64 else 1.1,
        lambda p: 1.1 if p.features["seq_len_q"] == 64 else 1.5,
    )
    found = {
        region.kernel: [region.ranges[name] for name in ("batch_heads", "seq_len_q")]
        for region in rule(points)
    }
    assert found == {0: [(58, 181)] * 2, 1: [(182, 563)] * 2}


@st.composite
def boards(draw: st.DrawFn) -> list[Point]:
    """Cases on a grid of sizes, with speedups at random; few of them cannot run."""
    cells = st.one_of(st.none(), st.just(0.0), st.floats(0.5, 3.0))
    points = [
        point(length, batch=batch, causal=causal)
        for length in LENGTHS[:4]
        for batch in (1, 2, 4)
        for causal in (False, True)
    ]
    return [p.with_scores([score(draw(cells)) for _ in range(2)]) for p in points]


@given(boards())
def test_no_case_is_served_that_lost_and_none_worse_than_by_pytorch(points: list[Point]) -> None:
    found = rule(points, domain(), domain(causal=True))
    for p in points:
        kernel = kernel_at(found, p)
        if kernel is not None:
            known = p.scores[kernel]
            assert known is not None
            assert known.won
    figures = judged(points, found)
    assert figures.worst >= 1.0
    assert figures.of_best <= 1.0 + 1e-9
    # No two regions of different kernels hold the same case.
    for p in points:
        assert len({region.kernel for region in found if region.holds(p)}) <= 1


def test_the_rule_stays_small_where_two_kernels_differ_by_noise() -> None:
    rng = random.Random(1)
    points = [
        point(length, batch=batch).with_scores(
            [score(1.3 * rng.uniform(0.995, 1.005)) for _ in range(3)]
        )
        for length in LENGTHS
        for batch in (1, 2, 4, 8)
    ]
    assert len(rule(points)) == 1


def test_a_held_out_case_that_loses_is_cut_out_and_told() -> None:
    points = scored([point(n) for n in LENGTHS], lambda p: 1.4)
    found = rule(points)
    judges = scored([point(3000), point(300)], lambda p: 0.9 if "3000" in p.label else 1.3)
    left, cuts = without_losses(found, judges, points)
    (region,) = left
    assert region.ranges["seq_len_q"] == (116, 2478)  # up to the middle of 2048 and 3000
    assert region.cases == tuple(p.label for p in points[:5])
    (cut,) = cuts
    assert cut.case == "(1,8,3000,64) full"
    assert cut.words == (
        f"(1,8,3000,64) full, held out, has 0.900x in [{found[0].words}]; left: head_dim 64, "
        "not causal, batch*heads 8, seq_len_q 116 to 2478"
    )
    before, after = judged(judges, found), judged(judges, left)
    assert (before.worst, before.worst_case) == (0.9, "(1,8,3000,64) full")
    assert (after.worst, after.served, after.cases) == (1.0, 1, 2)


def test_a_region_of_which_nothing_is_left_goes() -> None:
    points = scored([point(512)], lambda p: 1.4)
    judges = scored([point(512, keys=512, weight=2)], lambda p: 0.0)  # the gate refused it there
    left, cuts = without_losses(rule(points), judges, points)
    assert left == []
    assert cuts[0].words.endswith("nothing of it is left")


@given(st.integers(0, 5), st.floats(0.0, 0.9))
def test_held_out_cases_are_a_share_of_each_kind(seed: int, share: float) -> None:
    points = [point(n, causal=c) for n in LENGTHS for c in (False, True)] + [point(64, head_dim=32)]
    found = held_out_labels(points, share, seed)
    assert found == held_out_labels(points, share, seed)
    each = min(round(share * 6), 5)
    assert len(found) == (2 * each if each else round(2 * share * 6))
    assert points[-1].label not in found


@given(st.integers(0, 5))
def test_small_groups_share_their_held_out_cases(seed: int) -> None:
    large = [point(n) for n in LENGTHS]
    small = [point(n, head_dim=d) for n in LENGTHS[:2] for d in range(128, 228, 5)]
    found = held_out_labels([*small, *large], 0.2, seed)
    assert len(found & {p.label for p in small}) == 8
    # A large group has the cases that it has without small ones.
    assert found & {p.label for p in large} == held_out_labels(large, 0.2, seed)


def test_an_exact_rule_has_a_region_for_each_measured_case() -> None:
    points = scored([point(n) for n in LENGTHS], lambda p: 1.4)
    found = regions_of(learnt_leaves(points, [0]), {0: (domain(),)}, exact=True)
    assert len(found) == len(LENGTHS)
    assert all(region.exact and len(region.cases) == 1 for region in found)
    assert not any(region.holds(point(300)) for region in found)


def test_a_drawn_case_bounds_a_region_and_is_none_of_its_cases() -> None:
    """It has weight 0. The kernel that wins it serves it, as far as the listed cases reach."""
    listed = scored([point(n) for n in LENGTHS], lambda p: 1.4)
    (before,) = rule(listed)
    won, lost = (
        scored([point(4500, weight=0.0)], lambda p: 1.1),
        [point(3000, weight=0.0).with_scores([score(0.9)])],
    )
    assert rule([*listed, *won]) == [before]
    found = rule([*listed, *lost])
    assert sum(len(region.cases) for region in found) == len(listed)
    assert not any(region.holds(lost[0]) for region in found)


def test_windows_stay_near_those_that_were_measured() -> None:
    def windowed(length: int, window: int) -> Point:
        shape = {"batch": 1, "heads": 8, "seq_len": length, "head_dim": 64}
        return point_of(PROBLEM, PROBLEM.case(shape, {"causal": True, "window_left": window}))

    points = scored([windowed(n, w) for n in LENGTHS for w in (1024, 2048)], lambda p: 1.4)
    fixed = points[0].place.fixed
    whole = Region(fixed, {**RANGES, "window_left": (0, 1 << 17)}, 100)
    (region,) = rule(points, whole)
    assert region.words.endswith("window_left 922 to 2252")
    assert region.holds(windowed(3000, 1500))
    assert not region.holds(windowed(3000, 16))
    judges = scored([windowed(512, 1100)], lambda p: 0.9)
    left, _ = without_losses([region], judges, points)
    assert not any(each.holds(judges[0]) for each in left)
