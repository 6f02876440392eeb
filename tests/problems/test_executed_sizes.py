"""Which sizes count as executed: pairs of bands, and lengths one by one."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from evotune.problems.attention import Attention
from evotune.problems.executed_sizes import (
    LengthPlan,
    band_pairs,
    executed_around,
    executed_lengths,
    has_pairs,
    joined_lengths,
    missing_pairs,
    near_ends,
    tightened,
)
from evotune.problems.problem import Place
from evotune.problems.short_cases import pair_cases
from evotune.runs.champion_cases import wanted_lengths
from evotune.trial import ExecutedLengths, Region, Value

PROBLEM = Attention("float32")
FIXED: dict[str, Value] = {"dtype": "float32", "head_dim": 64, "causal": False}


def place(keys: int, *, batch: int = 1, heads: int = 8, group: int = 1) -> Place:
    shape = {"batch": batch, "heads": heads, "kv_heads": heads // group, "head_dim": 64}
    shape |= {"seq_len_q": 1, "seq_len_k": keys}
    return PROBLEM.place(PROBLEM.case(shape, {"causal": False}))


def region(*places: Place) -> Region:
    ranges = {n: (min(v), max(v)) for n in places[0].ranged if (v := [p.ranged[n] for p in places])}
    return Region(FIXED, ranges, len(places), pairs=band_pairs(places))


def test_two_sizes_that_never_met_are_outside() -> None:
    """Groups of 8 were right on few keys, and 900 keys with groups of 1."""
    found = region(place(60, group=8), place(900))
    assert has_pairs(found, place(50, group=8))
    assert has_pairs(found, place(1000))
    assert not has_pairs(found, place(900, group=8))
    assert not has_pairs(found, place(50, group=4))


def test_a_region_of_an_older_store_has_no_pairs_and_holds_its_box() -> None:
    older = Region(FIXED, region(place(60), place(900)).ranges, 2)
    assert has_pairs(older, place(900, group=8))


def test_pairs_that_no_case_of_a_box_has_are_not_missing() -> None:
    """Heads are multiples of the group; lengths keep their ratio."""
    met = band_pairs([place(900, heads=32, group=4)])
    box = {"heads": (29, 35), "group": (4, 4), "seq_len_k": (800, 990), "seq_len_q": (1, 1)}
    assert list(missing_pairs(met, box)) == []
    wide = list(missing_pairs(met, {**box, "heads": (28, 35)}))
    assert ("group", "heads", 4, 5) in wide
    lengths = {"seq_len_k": (512, 8192), "seq_len_q": (512, 8192), "length_ratio": (0.9, 1.1)}
    apart = {abs(first - second) for *_, first, second in missing_pairs({}, lengths)}
    assert apart == {0, 1}


def test_a_length_that_was_not_executed_ends_the_range() -> None:
    plan = LengthPlan(FIXED, {"group": 1}, "seq_len_k", 90, 110, tuple(range(90, 111)))
    places = [place(keys) for keys in range(90, 111) if keys != 104]
    (found,) = executed_lengths([plan], places)
    assert found == ExecutedLengths("seq_len_k", {"group": 1}, ((90, 103), (105, 110)))
    other_group = [place(keys, group=2) for keys in range(90, 111)]
    assert executed_lengths([plan], other_group)[0].ranges == ()


def test_lengths_that_a_kernel_does_not_take_leave_no_gap() -> None:
    plan = LengthPlan(FIXED, {}, "seq_len_k", 90, 110, (96, 104))
    assert executed_lengths([plan], [place(96), place(104)])[0].ranges == ((90, 110),)
    assert executed_lengths([plan], [place(104)])[0].ranges == ((104, 110),)


def test_samples_count_only_together() -> None:
    plan = LengthPlan(FIXED, {}, "seq_len_k", 600, 5000, (600, 1000, 5000), each=False)
    places = [place(keys) for keys in plan.numbers]
    assert executed_lengths([plan], places)[0].ranges == ((600, 5000),)
    assert executed_lengths([plan], places[:2])[0].ranges == ()


def test_the_range_around_a_case_is_that_of_its_own_ratio() -> None:
    executed = (
        ExecutedLengths("seq_len_k", {"group": 1}, ((90, 103), (105, 110))),
        ExecutedLengths("seq_len_k", {"group": 4}, ((95, 100),)),
    )
    known = Region(FIXED, {}, 1, executed=executed)
    assert executed_around(known, place(100).ranged, "seq_len_k") == {"seq_len_k": (90, 103)}
    assert executed_around(known, place(100, group=4).ranged, "seq_len_k") == {
        "seq_len_k": (95, 100)
    }
    assert executed_around(known, place(104).ranged, "seq_len_k") is None
    assert executed_around(known, place(104).ranged, "batch") == {}
    assert executed_around(Region(FIXED, {}, 1), place(104).ranged, "seq_len_k") == {}


@pytest.mark.parametrize("measured", [(512,), (512, 2048, 8192), (1, 4096)])
def test_each_length_near_a_case_is_wanted_and_every_remainder_elsewhere(
    measured: tuple[int, ...],
) -> None:
    low, high = near_ends(measured)
    each, (sampled, numbers) = wanted_lengths(
        measured, [(max(1, low), high)], each_upto=512, rng=random.Random(0)
    )
    covered = sorted([*each, *sampled])
    assert (covered[0][0], covered[-1][1]) == (max(1, low), high)
    assert all(one[1] + 1 == next_one[0] for one, next_one in itertools.pairwise(covered))
    for length in measured:
        near = near_ends([length])
        if near[1] - near[0] < 512:
            assert any(first <= near[0] and near[1] <= last for first, last in each)
    inside = [n for first, last in sampled for n in range(first, last + 1)]
    for size in (64, 128, 256, 384):
        assert {n % size for n in numbers} >= {n % size for n in inside}
    assert {n for n in (2047, 4095, 4097, 6143) if n in set(inside)} <= set(numbers)
    assert len(numbers) < 600


def test_of_several_ranges_no_other_length_is_wanted() -> None:
    reach = [(1, 40), (900, 1100), (3000, 9000)]
    each, (sampled, numbers) = wanted_lengths([1000], reach, each_upto=512, rng=random.Random(0))
    assert each == [(1, 40), (900, 1100)]
    assert sampled == [(3000, 9000)]
    assert (numbers[0], numbers[-1]) == (3000, 9000)
    assert {n % 384 for n in numbers} == set(range(384))


def test_ranges_are_no_wider_than_ratio_and_product_leave_them() -> None:
    wide = {"seq_len_q": (100, 200), "seq_len_k": (1, 100000), "length_ratio": (0.9, 1.1)}
    found = tightened({**wide, "batch": (1, 64), "heads": (4, 64), "batch_heads": (8, 16)})
    assert found["seq_len_k"] == (90, 220)
    assert found["seq_len_q"] == (100, 200)
    assert (found["batch"], found["heads"]) == ((1, 4), (4, 16))
    assert tightened({"rows": (1, 9)}) == {"rows": (1, 9)}


def test_pairs_that_batch_heads_or_a_group_exclude_are_not_missing() -> None:
    box = {"batch": (1, 64), "heads": (1, 64), "batch_heads": (60, 64), "group": (3, 3)}
    found = {(first, second) for one, other, first, second in missing_pairs({}, box)
             if (one, other) == ("batch", "heads")}  # fmt: skip
    assert (1, 1) not in found  # too few of both
    assert (7, 7) not in found  # too many
    assert (1, 6) in found
    groups = {**box, "group": (1, 3)}
    heads = [(g, h) for one, other, g, h in missing_pairs({}, groups)
             if (one, other) == ("group", "heads")]  # fmt: skip
    assert (1, 1) in heads
    assert (3, 1) not in heads  # one head has no group of 3


def test_lengths_of_several_regions_are_joined_by_quantity_and_ratio() -> None:
    one = ExecutedLengths("seq_len_k", {"group": 1}, ((1, 10), (20, 30)))
    other = ExecutedLengths("seq_len_k", {"group": 4}, ((1, 5),))
    more = ExecutedLengths("seq_len_k", {"group": 1}, ((11, 15),))
    found = joined_lengths([one, other], [more])
    assert found == (msgspec.structs.replace(one, ranges=((1, 15), (20, 30))), other)


def test_pairs_of_a_rule_may_be_as_large_as_its_largest_case() -> None:
    shape = {"batch": 4, "heads": 32, "seq_len": 4096, "head_dim": 64}
    like = PROBLEM.case(shape, {"causal": False})
    box = {"heads": (17, 64), "seq_len_q": (4000, 4505)}

    def left(**given: int) -> int:
        met: list[Place] = []
        list(pair_cases(PROBLEM, like, met, box, (), lambda case: case, **given))
        return len(list(missing_pairs(band_pairs(met), box)))

    assert left() > 0
    assert left(most_bytes=PROBLEM.bytes_moved(like)) == 0
