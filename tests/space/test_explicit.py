from __future__ import annotations

import gc
import itertools
import random
from collections import Counter

import pytest
from counting import calls_made
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.errors import SpaceError
from evotune.space.search_space import (
    Boolean,
    Categorical,
    ExplicitSpace,
    IntegerRange,
    OrderedParameter,
    SearchSpace,
    SpaceSize,
)
from evotune.trial import Configuration, Value

PARAMETERS = (
    OrderedParameter("TILE", (16, 32, 64, 128)),
    Categorical("SWIZZLE", ("none", "xor", "shift")),
    Boolean("ASYNC"),
    OrderedParameter("UNROLL", (1,)),
)
NAMES = [parameter.name for parameter in PARAMETERS]
EVERYTHING = [
    dict(zip(NAMES, values, strict=True))
    for values in itertools.product(*(parameter.values for parameter in PARAMETERS))
]
members = st.lists(st.sampled_from(EVERYTHING), min_size=1, max_size=12)


def member(tile: Value, swizzle: Value = "none", asynchronous: Value = False) -> Configuration:
    return Configuration({"TILE": tile, "SWIZZLE": swizzle, "ASYNC": asynchronous, "UNROLL": 1})


def changed(first: dict[str, Value], second: Configuration) -> int:
    return sum(first.get(name) != second[name] for name in NAMES)


def test_is_a_search_space() -> None:
    space: SearchSpace = ExplicitSpace(PARAMETERS, EVERYTHING[::2])
    assert space.parameters == PARAMETERS
    assert space.size() == SpaceSize(cartesian=24, valid=12, exact=True)


def test_enumerates_once_in_order_of_the_value_indices() -> None:
    shuffled = EVERYTHING[3:20] + EVERYTHING[5:9]
    random.Random(1).shuffle(shuffled)
    space = ExplicitSpace(PARAMETERS, shuffled)
    assert [dict(c) for c in space.enumerate()] == EVERYTHING[3:20]
    assert len(space) == 17


def test_membership_asks_for_the_exact_values_and_names() -> None:
    space = ExplicitSpace(PARAMETERS, [member(16)])
    assert space.is_valid({"UNROLL": 1, "ASYNC": False, "SWIZZLE": "none", "TILE": 16})
    for stranger in (
        member(32),
        member(17),
        member(16.0),
        member(16, "none", 0),
        {"TILE": 16},
        {**member(16), "MORE": 1},
    ):
        assert not space.is_valid(stranger)


def test_samples_uniformly() -> None:
    space = ExplicitSpace(PARAMETERS, EVERYTHING[:8])
    rng = random.Random(0)
    counts = Counter(space.sample(rng) for _ in range(4000))
    assert len(counts) == 8
    assert all(420 < count < 580 for count in counts.values())


def test_only_parameters_that_vary_are_active() -> None:
    space = ExplicitSpace(PARAMETERS, [member(16), member(64)])
    assert space.active(member(16)) == ("TILE",)


def test_neighbours_come_nearest_values_first_then_in_order_of_the_genes() -> None:
    space = ExplicitSpace(PARAMETERS, [c for c in EVERYTHING if c != dict(member(32))])
    assert list(space.neighbours(member(16))) == [
        member(16, "xor"),
        member(16, "shift"),
        member(16, "none", True),
        member(64),
        member(128),
    ]


@settings(derandomize=True, max_examples=100)
@given(members)
def test_neighbours_are_all_members_at_hamming_distance_one(chosen: list[dict[str, Value]]) -> None:
    space = ExplicitSpace(PARAMETERS, chosen)
    for configuration in space.enumerate():
        expected = {c for c in space.enumerate() if changed(dict(c), configuration) == 1}
        neighbours = space.neighbours(configuration)
        assert set(neighbours) == expected
        assert len(neighbours) == len(expected)


@settings(derandomize=True, max_examples=200)
@given(members, st.sampled_from(EVERYTHING), st.sets(st.sampled_from(NAMES)), st.integers(0, 9))
def test_repair_changes_as_few_genes_as_can_be(
    chosen: list[dict[str, Value]], wanted: dict[str, Value], unknown: set[str], seed: int
) -> None:
    space = ExplicitSpace(PARAMETERS, chosen)
    values = {name: "nonsense" if name in unknown else value for name, value in wanted.items()}
    repaired = space.repair(values, random.Random(seed))
    assert space.is_valid(repaired)
    assert changed(values, repaired) == min(changed(values, c) for c in space.enumerate())
    assert repaired == space.repair(values, random.Random(seed))


def test_repair_takes_the_smallest_step_and_draws_among_equals() -> None:
    space = ExplicitSpace(PARAMETERS, [member(16), member(128), member(32, "xor")])
    assert space.repair(member(32), random.Random(0)) in (member(16), member(32, "xor"))
    far = ExplicitSpace(PARAMETERS, [member(16), member(128)])
    assert far.repair(member(32), random.Random(0)) == member(16)
    even = ExplicitSpace(PARAMETERS, [member(16), member(64)])
    drawn = {even.repair(member(32), random.Random(seed)) for seed in range(20)}
    assert drawn == {member(16), member(64)}


def test_repair_completes_what_is_missing() -> None:
    space = ExplicitSpace(PARAMETERS, EVERYTHING)
    assert space.repair({"TILE": 64}, random.Random(0))["TILE"] == 64


@pytest.mark.parametrize(
    ("configurations", "complaint"),
    [
        ([], "no configuration"),
        ([{**member(16), "TILE": 17}], "TILE = 17"),
        ([{"TILE": 16}], "SWIZZLE = None"),
    ],
)
def test_refuses_what_is_no_set_of_configurations(
    configurations: list[dict[str, Value]], complaint: str
) -> None:
    with pytest.raises(SpaceError, match=complaint):
        ExplicitSpace(PARAMETERS, configurations)


def test_eighteen_thousand_configurations_are_indexed_with_little_work_for_each() -> None:
    parameters = [OrderedParameter(f"P{i}", (1, 2, 4, 8, 16, 32)) for i in range(6)]
    product = itertools.product(*(parameter.values for parameter in parameters))
    configurations = [
        {f"P{i}": value for i, value in enumerate(values)}
        for values in itertools.islice(product, 18_000)
    ]
    assert calls_made(lambda: ExplicitSpace(parameters, configurations), 18_000 * 30) > 18_000


def test_the_default_is_nearest_to_the_middle_of_every_domain() -> None:
    parameters = (IntegerRange("A", 1, 9), IntegerRange("B", 1, 9))
    grid = [{"A": a, "B": b} for a in range(1, 10) for b in range(1, 10)]
    assert dict(ExplicitSpace(parameters, grid).default()) == {"A": 5, "B": 5}
    ring = [c for c in grid if c != {"A": 5, "B": 5} and 5 not in (c["A"], c["B"])]
    assert dict(ExplicitSpace(parameters, ring).default()) in [
        {"A": a, "B": b} for a in (4, 6) for b in (4, 6)
    ]


def test_a_large_space_keeps_few_of_its_configurations_as_objects() -> None:
    parameters = [OrderedParameter(f"P{i}", tuple(range(30))) for i in range(3)]
    space = ExplicitSpace.of_ranks(parameters, range(24_000))
    others = _configurations_alive()
    assert sum(1 for _ in space.enumerate()) == 24_000
    assert _configurations_alive() - others < 20_000
    assert dict(space.at_rank(1)) == {"P0": 0, "P1": 0, "P2": 1}  # made again


def _configurations_alive() -> int:
    gc.collect()
    return sum(type(each) is Configuration for each in gc.get_objects())
