"""Regions around won cases: exact, between, a tenth around, never over a lost case."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from evotune.export.case_shapes import (
    MeasuredCase,
    exact_regions,
    in_order,
    near_regions,
)
from evotune.problems.attention import Attention
from evotune.problems.executed_sizes import band_pairs, joined_pairs
from evotune.problems.problem import Place
from evotune.trial import ExecutedLengths, Region

SIZES = frozenset({"batch", "heads", "seq_len_q", "seq_len_k"})
PROBLEM = Attention("float16")
FIXED = {"dtype": "float16", "head_dim": 64, "causal": False}
DOMAIN = Region(
    FIXED,
    {
        "batch": (1, 9),
        "heads": (1, 40),
        "seq_len_q": (1, 9000),
        "seq_len_k": (1, 9000),
        "group": (1, 8),
        "softmax_scale": (0.02, 0.5),
        "elements": (64, 1 << 25),
    },
    90,
)


def place(seq_len: int, *, batch: int = 1, heads: int = 8, kv_heads: int = 8) -> Place:
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_len": seq_len}
    return PROBLEM.place(PROBLEM.case({**shape, "head_dim": 64}, {"causal": False}))


def case(seq_len: int, low: float, *, held_out: bool = False, **sizes: int) -> MeasuredCase:
    return MeasuredCase(f"{seq_len} {sizes}", place(seq_len, **sizes), SIZES, low, held_out)


def lengths(measured: list[MeasuredCase], *domain: Region) -> list[tuple[int, int]]:
    regions = near_regions(0, measured, domain or (DOMAIN,))
    found = [region.ranges["seq_len_q"] for region in regions]
    return sorted((int(low), int(high)) for low, high in found)


def test_a_won_timed_case_is_a_region_of_its_own() -> None:
    measured = [case(512, 1.2), case(1024, 0.99), case(500, 1.1, held_out=True)]
    (region,) = exact_regions(3, measured)
    assert region.kernel == 3
    assert region.speedup_low == 1.2
    assert place(512).is_in(region.fixed, region.ranges)
    assert not place(513).is_in(region.fixed, region.ranges)
    assert region.to_json("contiguous")["ranges"]["seq_len_q"] == [512, 512]


def test_a_case_that_gains_less_than_a_call_costs_is_not_won() -> None:
    measured = [dataclasses.replace(case(512, 1.2), gain_us=-0.1)]
    assert not list(exact_regions(0, measured))
    assert not list(near_regions(0, measured, [DOMAIN]))


def test_a_tenth_around_a_won_case_is_near() -> None:
    (region,) = near_regions(0, [case(512, 1.2)], [DOMAIN])
    assert region.near
    assert region.ranges["seq_len_q"] == (461, 563)
    assert region.ranges["batch"] == (1, 1)
    assert region.ranges["heads"] == (8, 8)
    assert region.ranges["group"] == (1, 1)
    assert region.ranges["softmax_scale"] == (0.02, 0.5)
    assert not place(512, kv_heads=4).is_in(region.fixed, region.ranges)


def test_cases_between_two_won_ones_are_near_and_the_lower_speedup_counts() -> None:
    measured = [case(512, 1.2), case(2048, 1.05), case(1000, 1.1, held_out=True)]
    (region,) = near_regions(0, measured, [DOMAIN])
    assert region.ranges["seq_len_q"] == (461, 2252)
    assert region.speedup_low == 1.05


def test_a_lost_case_is_in_no_region() -> None:
    assert lengths([case(512, 1.2), case(1024, 0.9), case(2048, 1.3)]) == [(461, 563), (1844, 2252)]
    assert lengths([case(512, 1.2), case(530, 0.9, held_out=True)]) == []
    assert lengths([case(512, 0.9)]) == []


def test_regions_stay_inside_the_domain() -> None:
    small = Region(FIXED, {**DOMAIN.ranges, "seq_len_q": (480, 520)}, 5)
    assert lengths([case(512, 1.2)], small) == [(480, 520)]
    other = Region({**FIXED, "causal": True}, DOMAIN.ranges, 5)
    assert lengths([case(512, 1.2)], other) == []


def executed(*ranges: tuple[int, int], **more: Any) -> Region:
    """The domain with lengths that were executed one by one, and with the pairs of their cases."""
    lengths = tuple(
        ExecutedLengths(name, {"group": 1}, ranges) for name in ("seq_len_q", "seq_len_k")
    )
    met = [place(end, **more) for low, high in ranges for end in range(low, high + 1)]
    return msgspec.structs.replace(DOMAIN, executed=lengths, pairs=with_any_lengths(met))


def with_any_lengths(met: list[Place]) -> dict[str, tuple[tuple[int, int], ...]]:
    """The pairs of the cases, and any two lengths: these cases tell no ratio of their lengths."""
    both = {"seq_len_k seq_len_q": [(a, b) for a in range(9, 12) for b in range(9, 12)]}
    return joined_pairs(band_pairs(met), both)


def test_regions_end_at_the_last_length_that_was_executed() -> None:
    assert lengths([case(512, 1.2)], executed((500, 563))) == [(500, 563)]
    assert lengths([case(512, 1.2)], executed((461, 504), (506, 530))) == [(506, 530)]
    assert lengths([case(512, 1.2)], executed((513, 563))) == []
    assert lengths([case(512, 1.2, kv_heads=4)], executed((461, 563))) == []


def test_won_cases_are_joined_only_over_executed_lengths() -> None:
    won = [case(512, 1.2), case(700, 1.2)]
    assert lengths(won, executed((461, 770))) == [(461, 770)]
    assert lengths(won, executed((461, 563), (630, 770))) == [(461, 563), (630, 770)]


def test_regions_hold_no_bands_that_never_met() -> None:
    """Lengths from 1,024 on were executed with two batches alone."""
    domain = executed((461, 1126), batch=1)
    met = [place(n) for n in range(461, 1024)] + [place(n, batch=2) for n in range(1024, 1127)]
    domain = msgspec.structs.replace(domain, pairs=with_any_lengths(met))
    assert lengths([case(1000, 1.2)], domain) == [(900, 1023)]
    assert lengths([case(1100, 1.2, batch=2)], domain) == [(1024, 1126)]


def test_a_run_of_before_is_served_as_it_was() -> None:
    assert DOMAIN.executed is None
    assert lengths([case(512, 1.2)]) == [(461, 563)]


def test_a_ratio_of_sizes_changes_by_a_tenth_at_most() -> None:
    found = [case(512, 1.2), case(2048, 1.2)]
    for one in found:
        one.place.ranged["length_ratio"] = 1.0  # type: ignore[index]
    (region,) = near_regions(0, found, [DOMAIN])
    assert region.ranges["seq_len_q"] == (461, 2252)
    assert region.ranges["length_ratio"] == (0.9, 1.1)


def test_other_ratios_of_heads_are_other_regions() -> None:
    measured = [case(512, 1.2), case(1024, 1.2, kv_heads=2)]
    assert lengths(measured) == [(461, 563), (922, 1126)]


def test_the_greatest_lower_bound_comes_first_whatever_the_order() -> None:
    regions = [
        *exact_regions(0, [case(512, 1.2)]),
        *exact_regions(1, [case(512, 1.3)]),
        *near_regions(0, [case(512, 1.9)], [DOMAIN]),
    ]
    wanted = [(1, False), (0, False), (0, True)]
    for given in (regions, regions[::-1]):
        assert [(region.kernel, region.near) for region in in_order(given)] == wanted


def test_windows_are_sizes_and_may_be_0() -> None:
    shape = {"batch": 1, "heads": 8, "seq_len": 512, "head_dim": 64}
    measured = []
    for window, low in ((0, 1.2), (100, 1.1), (400, 0.9)):
        made = PROBLEM.case({**shape, "window_left": window, "softcap": 20.0}, {"causal": True})
        sizes = SIZES | {"window_left"}
        measured.append(MeasuredCase(made.label, PROBLEM.place(made), sizes, low))
    ranges = {**DOMAIN.ranges, "window_left": (0, 500), "softcap": (5.0, 40.0)}
    domain = Region(measured[0].place.fixed, ranges, 90)
    (region,) = near_regions(0, measured, (domain,))
    assert region.ranges["window_left"] == (0, 110)
    assert region.ranges["softcap"] == (5.0, 40.0)


def masked(seq_len: int, low: float, *, held_out: bool = False, **told: Any) -> MeasuredCase:
    sizes = {"batch": 2, "heads": 8, "seq_len": seq_len, "head_dim": 64}
    found = PROBLEM.case(sizes, {"mask": "bool", **told})
    return MeasuredCase(found.label, PROBLEM.place(found), SIZES, low, held_out)


def of_masks(*mask_sizes: str) -> Region:
    """A domain in which masks were executed that are broadcast in these ways."""
    fixed = {**FIXED, "mask": "bool"}
    return msgspec.structs.replace(DOMAIN, fixed=fixed, mask_sizes=mask_sizes)


def test_masks_are_served_as_they_were_executed() -> None:
    domain = of_masks("1 1 rows", "batch 1 rows", "batch heads rows")
    won = masked(512, 1.2, mask_heads=1)
    for (region,) in (exact_regions(0, [won], [domain]), near_regions(0, [won], [domain])):
        assert region.mask_sizes == ("batch 1 rows", "1 1 rows", "batch heads rows")
        assert region.to_json("strided")["mask_sizes"] == list(region.mask_sizes)
    (region,) = exact_regions(0, [won], [of_masks()])  # of an older store
    assert region.mask_sizes == ("batch 1 rows",)
    (region,) = exact_regions(0, [case(512, 1.2)], [DOMAIN, domain])
    assert not region.mask_sizes
    assert "mask_sizes" not in region.to_json("strided")


def test_a_mask_that_lost_is_not_served_with_the_sizes_of_one_that_won() -> None:
    domain = of_masks("1 1 rows", "batch 1 rows", "batch heads rows")
    won, lost = masked(512, 1.2, mask_heads=1), masked(512, 0.9, mask_batch=1, mask_heads=1)
    (region,) = exact_regions(0, [won, lost], [domain])
    assert region.mask_sizes == ("batch 1 rows", "batch heads rows")
    assert not list(near_regions(0, [won, lost], [domain]))
    (far,) = near_regions(0, [won, masked(2048, 0.9)], [domain])
    assert far.mask_sizes == ("batch 1 rows", "1 1 rows", "batch heads rows")
