"""Edge and random shapes of attention hold every class of cases, whatever the seed: a kernel that
is wrong for one class must meet it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import islice

import pytest

from evotune.problems import Case
from evotune.problems.attention import Attention
from evotune.problems.attention_shapes import FAR
from evotune.problems.pair_cover import MODELS
from evotune.trial import Value

PROBLEM = Attention("float32")
SEEDS = range(3)
FURTHER_SEEDS = range(3, 12)
TESTS = 240  # of two variants
Sizes = dict[str, int]


def timed(length: int = 512, **more: Value) -> list[Case]:
    shape: dict[str, Value] = {"batch": 1, "heads": 8, "seq_len": length, "head_dim": 64, **more}
    return [PROBLEM.case(shape, {"causal": causal}) for causal in (False, True)]


def drawn(seed: int, length: int = 512, kept: tuple[str, ...] = ()) -> list[Case]:
    """The tests of a champion; those of far tensors come on top."""
    cases = PROBLEM.random_cases(timed(length), seed, kept)
    return list(islice((case for case in cases if case.symbols["layout"] not in FAR), TESTS))


drawn_once = functools.cache(drawn)
"""For tests that look at the same cases, one after the other."""


def sizes(case: Case) -> Sizes:
    found = {name: int(value) for name, value in case.symbols.items() if isinstance(value, int)}
    return {**found, "group": found["heads"] // found["kv_heads"]}


def lengths(case: Case) -> tuple[int, int]:
    return int(case.symbols["seq_len_q"]), int(case.symbols["seq_len_k"])


def seen(sizes: Sizes) -> int:
    """The number of keys, if a row sees them all."""
    hidden = sizes["causal"] and sizes["seq_len_k"] > sizes["seq_len_q"]
    return 0 if hidden else sizes["seq_len_k"]


CLASSES: dict[str, Callable[[Sizes], bool]] = {
    "a third batch": lambda s: s["batch"] >= 3,
    "nine batches": lambda s: s["batch"] == 9,
    "heads from the ninth on": lambda s: s["heads"] >= 9 and s["group"] == 1,
    "more than 32 heads": lambda s: s["heads"] > 32,
    **{f"groups of {n}": lambda s, n=n: s["group"] == n for n in (1, 2, 3, 4, 5, 6, 7, 8, 16)},
    **{
        f"groups of {n} that show another's keys": lambda s, n=n: s["group"] == n
        and min(s["kv_heads"], s["seq_len_q"], s["seq_len_k"]) > 1
        for n in (2, 3, 4, 5, 6, 7, 8, 16)
    },
    "groups of 9 to 15": lambda s: 9 <= s["group"] <= 15,
    "groups with several key heads": lambda s: s["group"] > 1 and s["kv_heads"] > 1,
    "one query or key": lambda s: 1 in (s["seq_len_q"], s["seq_len_k"]),
    "fewer queries than keys": lambda s: s["seq_len_q"] < s["seq_len_k"],
    "more queries than keys": lambda s: s["seq_len_q"] > s["seq_len_k"],
    "as many queries as keys": lambda s: s["seq_len_q"] == s["seq_len_k"] > 100,
    **{
        f"{name} at {rest} mod {tile}": lambda s, n=name, t=tile, r=rest: s[n] % t == r % t
        for name in ("seq_len_q", "seq_len_k")
        for tile in (16, 64, 128)
        for rest in (-1, 1)
    },
    "keys at 63 mod 64, several tiles": lambda s: s["seq_len_k"] % 64 == 63 < s["seq_len_k"],
    "more than 600 queries and keys": lambda s: min(s["seq_len_q"], s["seq_len_k"]) > 600,
    "more than 65536 rows": lambda s: s["batch"] * s["heads"] * s["seq_len_q"] > 1 << 16
    and s["batch"] > 1,
    "more than 65536 rows of keys": lambda s: s["batch"] * s["kv_heads"] * s["seq_len_k"] > 1 << 16
    and s["batch"] > 1,
    "more than 65536 queries": lambda s: s["seq_len_q"] > 1 << 16,
    "several rows, groups of 5": lambda s: s["seq_len_q"] > 1 and s["group"] == 5,
    "keys at 63 mod 64 in groups of 4": lambda s: seen(s) % 64 == 63 and s["group"] == 4,
    "8 or more key heads with groups": lambda s: s["kv_heads"] >= 8 and s["group"] > 1,
    "twice as many rows as keys": lambda s: s["seq_len_q"] == 2 * s["seq_len_k"],
    "more than 600 keys in groups of 8": lambda s: seen(s) > 600 and s["group"] == 8,
    "more than 600 keys with more than 4 heads": lambda s: seen(s) > 600 and s["heads"] > 4,
    "more than 600 keys with more than 2 batches": lambda s: seen(s) > 600 and s["batch"] > 2,
    "127 rows in more batches": lambda s: s["seq_len_q"] == 127 and s["batch"] > 1,
    "a multiple of 384 keys": lambda s: seen(s) % 384 == 0 < seen(s),
    **{f"exactly {n} keys": lambda s, n=n: seen(s) == n for n in (129, 257, 513, 1025, 2047)},
    **{
        f"{heads}/{kv_heads} heads at several rows": lambda s, h=heads, k=kv_heads: (
            s["heads"], s["kv_heads"]) == (h, k) and min(s["seq_len_q"], seen(s)) > 4
        for heads, kv_heads in MODELS
    },
}  # fmt: skip
ONE_ROW: dict[str, Callable[[Sizes], bool]] = {
    **{f"groups of {n}": lambda s, n=n: s["group"] == n for n in (2, 3, 4, 5, 6, 7, 8, 16)},
    "many keys": lambda s: s["group"] > 1 and s["seq_len_k"] > 600,
    **{
        f"{heads}/{kv_heads} heads": lambda s, h=heads, k=kv_heads: (
            s["heads"], s["kv_heads"], s["seq_len_k"] > 600) == (h, k, True)
        for heads, kv_heads in MODELS
    },
}  # fmt: skip
"""The classes of decoding, which a causal mask aligned to the top left does not have."""


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_random_cases_of_any_seed_hold_a_class(name: str, causal: bool) -> None:
    for seed in SEEDS:
        mine = [sizes(case) for case in drawn_once(seed) if case.symbols["causal"] is causal]
        assert any(map(CLASSES[name], mine)), seed


@pytest.mark.parametrize("name", ONE_ROW)
def test_the_random_cases_of_any_seed_hold_a_class_of_decoding(name: str) -> None:
    for seed in SEEDS:
        full = [sizes(case) for case in drawn_once(seed) if not case.symbols["causal"]]
        assert any(ONE_ROW[name](each) for each in full if each["seq_len_q"] == 1), seed


@pytest.mark.soak
@pytest.mark.parametrize("seed", FURTHER_SEEDS)
def test_the_random_cases_of_further_seeds_hold_all_classes(seed: int) -> None:
    cases = [sizes(case) for case in drawn(seed)]
    for causal in (False, True):
        mine = [each for each in cases if each["causal"] == causal]
        missing = [name for name, holds in CLASSES.items() if not any(map(holds, mine))]
        assert not missing, causal
    decoding = [each for each in cases if each["seq_len_q"] == 1 and not each["causal"]]
    assert not [name for name, holds in ONE_ROW.items() if not any(map(holds, decoding))]


def test_groups_are_met_early_since_there_may_be_no_time_for_all() -> None:
    for seed in SEEDS:
        early = {sizes(case)["group"] for case in drawn_once(seed)[:80]}
        assert {1, 2, 3, 4, 5, 6, 7, 8, 16} <= early, seed


def test_every_remainder_by_64_meets_every_group_and_every_batch() -> None:
    """Pairs are dealt, not left to luck."""
    for seed in SEEDS:
        full = [sizes(case) for case in drawn_once(seed) if not case.symbols["causal"]]
        for length in ("seq_len_q", "seq_len_k"):
            for rest in (-1, 0, 1):
                alike = [each for each in full if each[length] % 64 == rest % 64]
                groups, batches = ({each[n] for each in alike} for n in ("group", "batch"))
                assert len(groups & {1, 2, 3, 4, 5, 6, 7, 8, 16}) >= 6, (seed, length, rest)
                assert {1, 2} <= batches, (seed, length, rest)
                assert max(batches) > 2, (seed, length, rest)


def test_the_spaces_own_sizes_are_drawn_with_one_size_changed() -> None:
    for seed in SEEDS:
        full = [sizes(case) for case in drawn_once(seed) if not case.symbols["causal"]]
        near = [each for each in full if each["heads"] == 8 and each["seq_len_k"] in (511, 513)]
        assert near, seed


@pytest.mark.sweep(4)
@pytest.mark.parametrize("length", [63, 512, 4096, 6000, 40_000])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_are_the_longest_odd_one_others_near_it_and_well_beyond_it(
    length: int, causal: bool
) -> None:
    """On a CPU of two cores the time is enough for some 8,192 causal rows."""
    most = 8191 if causal else 1 << 30
    for seed in SEEDS:
        early = drawn_once(seed, length)[:140]
        found = [lengths(case) for case in early if case.symbols["causal"] is causal]
        odd = [(q, k) for q, k in found if k % 2]
        near = max(1, min(length, most) - 95)
        longest = max(1, length - (length % 2 == 0))
        assert any(
            k == longest or (near <= k <= length and longest > most) for q, k in odd
            if not causal or q == k
        ), seed  # fmt: skip
        if length < most // 2:
            beyond = max(2 * length, 2048)
            assert any(
                (k > beyond if k % 2 else k > max(length, 1024) and k % 256 == 0)
                and (not causal or q == k)
                for q, k in found
            ), seed
        assert any(near <= q <= length and q % 2 for q, _ in found), seed
        if not causal:
            assert any(k > 1 << 16 for _, k in odd), seed


def test_long_cases_are_tested_with_a_needle_and_others_in_turn() -> None:
    cases = drawn_once(0, 4096)
    kinds = {case.label: PROBLEM.random_kinds(case, 4) for case in cases}
    long = [case for case in cases if max(lengths(case)) >= 4000]
    assert len(long) >= 8
    assert {kinds[case.label] for case in long} == {("needle",)}
    short = [case for case in cases if max(lengths(case)) <= 600]
    assert {kinds[case.label] for case in short} == {("normal",)}
    assert PROBLEM.random_kinds(short[0], 3) == ("large_logits",)


def test_every_second_case_has_another_scale_by_1_4_to_8_times_both_ways() -> None:
    factors = [float(case.symbols["softmax_scale"]) / 0.125 for case in drawn_once(1)]
    assert sum(factor != 1.0 for factor in factors) in range(96, 145)
    assert 1 / 8.1 < min(factors) < 1 / 3 < 3 < max(factors) < 8.1
    assert not any(1 / 1.38 < factor < 1.38 and factor != 1.0 for factor in factors)
    untold = drawn(3, kept=("softmax_scale",))
    assert {case.symbols["softmax_scale"] for case in untold} == {0.125}


def test_random_cases_are_those_of_their_seed_and_of_the_variants_asked_for() -> None:
    assert drawn(1) == drawn_once(1) != drawn_once(2)
    symbols = [case.symbols for case in drawn_once(1)]
    assert {s["head_dim"] for s in symbols} == {64}
    assert sum(bool(s["causal"]) for s in symbols) == TESTS // 2
    alone = islice(PROBLEM.random_cases(timed()[1:], 5), 100)
    assert all(case.symbols["causal"] for case in alone)


def test_random_cases_are_small_but_for_few_large_ones() -> None:
    """On two cores of a CPU each takes milliseconds, a large one some 100 ms."""
    for seed in SEEDS:
        scores = []
        for case in drawn_once(seed, 4096):
            s = sizes(case)
            scores.append(s["batch"] * s["heads"] * s["seq_len_q"] * s["seq_len_k"])
        assert max(scores) <= 1 << 26
        assert sum(each > 3 << 19 for each in scores) <= 30
        assert sum(scores) < 200e6


@pytest.mark.parametrize("kept", [("heads",), ("kv_heads",), ("seq_len",), ("batch", "seq_len_k")])
def test_what_is_compiled_in_keeps_its_value(kept: tuple[str, ...]) -> None:
    (base,) = timed(kv_heads=2)[1:]
    found = [*PROBLEM.edge_cases(base, kept), *islice(PROBLEM.random_cases([base], 1, kept), 60)]
    for name in kept:
        assert {case.symbols[name] for case in found} == {base.symbols[name]}
    assert len({case.label for case in found}) > 20


@pytest.mark.parametrize("causal", [False, True])
def test_the_few_edge_cases_of_a_search_differ_from_most_spaces_in_everything(
    causal: bool,
) -> None:
    edges = PROBLEM.edge_cases(timed()[causal])
    found = [sizes(case) for case in edges]
    assert len(edges) == 5
    for name in (
        *("a third batch", "heads from the ninth on", "more than 32 heads", "one query or key"),
        *("groups of 3", "groups of 5", "groups of 8", "fewer queries than keys"),
        *("more queries than keys", "seq_len_k at -1 mod 64", "keys at 63 mod 64, several tiles"),
    ):
        assert any(map(CLASSES[name], found)), name
    assert [case.symbols["softmax_scale"] for case in edges].count(0.125) == 4
    assert sum(s["batch"] * s["heads"] * s["seq_len_q"] * s["seq_len_k"] for s in found) < 400_000
    assert any(s["seq_len_k"] > 600 for s in found) is not causal


def test_the_other_scale_of_an_edge_case_is_another_one_whatever_is_usual() -> None:
    for scale in (0.01, 0.125, 0.28, 0.3, 0.33, 0.6, 1.0):
        base = timed(scale=scale)[0]
        found = {float(case.symbols["softmax_scale"]) for case in PROBLEM.edge_cases(base)}
        (other,) = found - {scale}
        assert max(other / scale, scale / other) > 1.3
        (kept,) = {
            case.symbols["softmax_scale"] for case in PROBLEM.edge_cases(base, ("softmax_scale",))
        }
        assert kept == scale


def test_a_place_tells_what_is_fixed_from_what_has_a_range() -> None:
    shape = {"batch": 2, "heads": 6, "kv_heads": 2, "seq_len_q": 5, "seq_len_k": 7, "head_dim": 64}
    place = PROBLEM.place(PROBLEM.case({**shape, "scale": 0.5}, {"causal": True}))
    assert place.fixed == {"dtype": "float32", "head_dim": 64, "causal": True}
    assert place.ranged == {
        **{"batch": 2, "heads": 6, "group": 3, "seq_len_q": 5, "seq_len_k": 7},
        **{"softmax_scale": 0.5, "elements": 2 * 6 * 5 * 64},
    }


def test_keys_have_most_remainders() -> None:
    met = [len({lengths(case)[1] % 16 for case in drawn_once(seed)}) for seed in SEEDS]
    assert min(met) >= 13
    assert sum(met) >= 15 * len(met)
