"""Counting, enumeration and sampling against brute force over small random spaces."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from counting import calls_made
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.errors import SpaceError
from evotune.space.bound import BoundSpace
from evotune.trial import Configuration, Value

from .spaces import bind_text

NUMBERS = ["A", "B", "C", "D"]
quick = settings(derandomize=True, max_examples=80)


@st.composite
def conditions(draw: st.DrawFn) -> str:
    left, right, third = (draw(st.sampled_from(NUMBERS)) for _ in range(3))
    number = draw(st.integers(-3, 12))
    shapes = [
        f"{left} * {right} <= {number}",
        f"{left} % {right} == {third} % 3",
        f"{left} + {right} + {third} > {number}",
        f"{right} != 0 and {left} % {right} == 0",
        f"{left} == {number} or {right} < {third}",
        f"FLAG or {left} >= {right}",
        f"KIND == xor or {left} != {right}",
        f"({left} if FLAG else {right}) <= {number}",
        f"n // {left} > {right}",
        f"max({left}, {right}) - min({left}, {third}) < 5",
        f"not ({left} in (1, {number}))",
        f"twice - {left} >= {number}",
        f"{left} / {right} < {third}",
        f"ceil_div({left}, {right}) != {third} ** 2",
    ]
    return draw(st.sampled_from(shapes))


@st.composite
def space_texts(draw: st.DrawFn) -> str:
    lines = []
    for name in NUMBERS:
        values = draw(st.lists(st.integers(-1, 8), min_size=1, max_size=4, unique=True))
        lines.append(f"  {name}: {{values: {values}")
        if name == "B" and draw(st.booleans()):
            lines[-1] += f', when: "A > 1 or FLAG", otherwise: {draw(st.integers(-2, 8))}'
        if name == "C" and draw(st.booleans()):
            lines[-1] += f', when: "B % 2 == 0", otherwise: {draw(st.integers(-2, 8))}'
        if name == "A" and draw(st.booleans()):
            lines[-1] += ', when: "6 // D > 1"'
        lines[-1] += "}"
    lines.insert(draw(st.integers(0, 4)), "  FLAG: [false, true]")
    lines.insert(
        draw(st.integers(0, 5)), "  KIND: [none, xor, 3]".replace("[", "{choices: [") + "}"
    )
    constraints = draw(st.lists(conditions(), max_size=4))
    listed = "".join(f'  - "{text}"\n' for text in constraints)
    return (
        'let: {twice: "2 * D + n"}\nparameters:\n'
        + "\n".join(lines)
        + "\nconstraints:"
        + (f"\n{listed}" if constraints else " []\n")
    )


def brute_force(space: BoundSpace) -> Iterator[Configuration]:
    """All members by definition: each point is tried, in every environment."""
    names = [gene.name for gene in space.genes]
    for values in itertools.product(*(gene.values for gene in space.genes)):
        point = dict(zip(names, values, strict=True))
        if all(_is_member(space, point, environment) for environment in ({"n": 6}, {"n": 9})):
            yield Configuration(point)


def _is_member(space: BoundSpace, point: dict[str, Value], environment: dict[str, Value]) -> bool:
    scope = {**point, **environment, "xor": "xor", "twice": 2 * point["D"] + environment["n"]}
    try:
        for gene in space.genes:
            when = gene.spec.when
            active = when is None or when.evaluate(scope)
            inside = point[gene.name] in gene.spec.parameter.values
            if not (inside if active else point[gene.name] == gene.spec.otherwise):
                return False
        return all(c.spec.expression.evaluate(scope) for c in space.constraints)
    except SpaceError:
        return False


@quick
@given(space_texts())
def test_count_enumeration_and_membership_agree_with_brute_force(text: str) -> None:
    space = bind_text(text, [{"n": 6}, {"n": 9}])
    expected = list(brute_force(space))
    if not expected:
        with pytest.raises(SpaceError, match="no configuration"):
            space.size()
        return
    assert space.size().exact
    assert space.size().valid == len(expected)
    assert list(space.enumerate()) == expected
    names = [gene.name for gene in space.genes]
    members = set(expected)
    for values in itertools.product(*(gene.values for gene in space.genes)):
        point = Configuration(dict(zip(names, values, strict=True)))
        assert space.is_valid(point) == (point in members)


@quick
@given(space_texts(), st.integers(0, 2**32))
def test_samples_repairs_and_neighbours_are_members(text: str, seed: int) -> None:
    space = bind_text(text, [{"n": 6}, {"n": 9}])
    members = set(brute_force(space))
    if not members:
        return
    rng = random.Random(seed)
    assert space.default() in members
    for _ in range(5):
        sampled = space.sample(rng)
        assert sampled in members
        neighbours = space.neighbours(sampled)
        assert set(neighbours) <= members - {sampled}
        assert len(set(neighbours)) == len(neighbours)
        drawn = {p.name: p.sample(rng) for p in space.parameters}
        assert space.repair(drawn, rng) in members
        assert space.repair(sampled, rng) == sampled


def test_sampling_is_uniform_over_members() -> None:
    space = bind_text(
        """
parameters:
  A: {range: [1, 6]}
  B: {range: [1, 6], when: "A > 2", otherwise: 0}
  C: [1, 2, 3]
  FREE: [false, true]
constraints: [A * B <= 12, (A + C) % 2 == 0]
"""
    )
    members = list(space.enumerate())
    rng = random.Random(1234)
    draws = 100 * len(members)
    counts = Counter(space.sample(rng) for _ in range(draws))
    assert set(counts) == set(members)
    chi_square = sum((counts[member] - 100) ** 2 / 100 for member in members)
    freedom = len(members) - 1
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def test_same_seed_gives_the_same_samples() -> None:
    text = "parameters: {A: {range: [1, 99]}, B: {range: [1, 99]}}\nconstraints: [A % B == 0]"
    first, second = (bind_text(text) for _ in range(2))
    draw = [first.sample(random.Random(seed)) for seed in range(20)]
    assert draw == [second.sample(random.Random(seed)) for seed in range(20)]


def test_neighbourhood_is_symmetric_without_conditions() -> None:
    space = bind_text(
        """
parameters:
  A: {range: [1, 200]}
  B: [1, 2, 3, 5]
  S: {choices: [none, xor, padded]}
constraints: [A % B == 0, S != xor or A > 100]
"""
    )
    members = list(space.enumerate())
    neighbours = {member: set(space.neighbours(member)) for member in members}
    for member, near in neighbours.items():
        assert all(member in neighbours[other] for other in near)
        assert all(sum(member[k] != other[k] for k in member) == 1 for other in near)


def test_neighbours_come_nearest_first_and_skip_inactive_parameters() -> None:
    space = bind_text(
        """
parameters:
  USE: [false, true]
  STAGES: {range: [2, 5], when: USE, otherwise: 1}
"""
    )
    idle, busy = Configuration({"USE": False, "STAGES": 1}), {"USE": True}
    assert space.active(idle) == ("USE",)
    assert space.neighbours(idle) == (Configuration({**busy, "STAGES": 2}),)
    near = space.neighbours(Configuration({**busy, "STAGES": 4}))
    assert [(c["USE"], c["STAGES"]) for c in near] == [
        (False, 1),
        (True, 3),
        (True, 5),
        (True, 2),
    ]


def test_repair_changes_as_few_values_as_possible() -> None:
    space = bind_text(
        """
parameters: {A: [1, 2, 3, 4], B: [1, 2, 3, 4], C: [1, 2, 3, 4], D: [1, 2]}
constraints: [A + B + C == 9, A % D == 0]
"""
    )
    members = list(space.enumerate())
    for seed, values in enumerate(itertools.product((1, 2, 3, 4), (1, 4), (1, 3), (1, 2))):
        wanted = dict(zip("ABCD", values, strict=True))
        repaired = space.repair(wanted, random.Random(seed))
        assert repaired is not None
        fewest = min(sum(m[k] != wanted[k] for k in m) for m in members)
        assert sum(repaired[k] != wanted[k] for k in wanted) == fewest


def test_incomplete_or_foreign_values_are_repaired_but_not_members() -> None:
    space = bind_text("parameters: {A: [1, 2], F: [false, true], N: [0, 1]}\nconstraints: [A > N]")
    member = {"A": 2, "F": True, "N": 1}
    assert space.is_valid(member)
    for change in ({"A": 3}, {"F": 1}, {"N": True}, {"A": 2.0}, {"A": "2"}, {"X": 1}):
        assert not space.is_valid({**member, **change})
    assert not space.is_valid({"A": 2})
    for values in ({}, {"A": 9, "F": None}, {"N": True, "Q": 3}):
        assert space.is_valid(space.repair(values, random.Random(0)))


BILLION = """
parameters:
  BM: {pow2: [16, 256]}
  BN: {pow2: [16, 256]}
  BK: {pow2: [8, 128]}
  WM: [1, 2, 3, 4, 6, 8, 12, 16]
  WN: [1, 2, 3, 4, 6, 8, 12, 16]
  TM: [1, 2, 4, 8, 16]
  TN: [1, 2, 4, 8, 16]
  STAGES: {range: [1, 8]}
  VECTOR: [1, 2, 4, 8]
  SWIZZLE: {choices: [none, xor, pad, rotate]}
  UNROLL: {range: [1, 8]}
  SPLIT: {range: [1, 16]}
constraints:
  - BM % (WM * TM) == 0
  - BN % (WN * TN) == 0
  - 128 <= 32 * WM * WN <= device.threads
  - 32768 <= (BM + BN) * BK * 4 * STAGES <= device.shared_bytes_per_block
  - 100 <= TM * TN * UNROLL <= 255
  - BK % (VECTOR * UNROLL) == 0
  - n % (BK * SPLIT) == 0
  - (BM // (WM * TM)) * (BN // (WN * TN)) * TM * TN == 64
  - SWIZZLE != xor or BK % 32 == 0
"""


def test_sparse_space_of_billions_is_counted_and_sampled_without_going_through_it() -> None:
    calls_made(lambda: bind_text(BILLION, [{"n": 4096}]).sample(random.Random(0)), limit=1_000_000)
    space = bind_text(BILLION, [{"n": 4096}])
    rng = random.Random(0)
    assert space.is_valid(space.sample(rng))
    size = space.size()
    assert size.exact
    assert size.cartesian == 3_276_800_000
    assert 0 < size.valid < size.cartesian // 10_000
    for _ in range(50):
        drawn = {p.name: p.sample(rng) for p in space.parameters}
        assert space.is_valid(space.repair(drawn, rng))
        assert all(map(space.is_valid, space.neighbours(space.sample(rng))))


def test_counts_beyond_64_bits_are_exact() -> None:
    names = [f"P{i}" for i in range(30)]
    listed = "".join(f"  {name}: {{range: [1, 10]}}\n" for name in names)
    space = bind_text(f"parameters:\n{listed}constraints: [{' + '.join(names)} <= 299]\n")
    assert space.size().valid == 10**30 - 1
    assert space.size().exact
    assert space.is_valid(space.sample(random.Random(0)))
    full = dict.fromkeys(names, 10)
    repaired = space.repair(full, random.Random(0))
    assert sum(repaired[name] != 10 for name in names) == 1


def test_space_too_entangled_to_count_is_still_sampled() -> None:
    listed = "".join(f"  P{i}: {{range: [1, 40]}}\n" for i in range(6))
    terms = " + ".join(
        f"P{i} * {prime}" for i, prime in enumerate((7919, 104729, 1299709, 15485863))
    )
    space = bind_text(
        f"parameters:\n{listed}constraints: [({terms}) % 101 == 5, "
        "(P0 * P5 + P1 * P4) % 7 == 3, (P2 ** 3 + P3 ** 2 * P0 + P4) % 11 == 2, "
        "P0 / P1 + P2 / P3 < P4 / P5 + 3]\n"
    )
    size = space.size()
    assert not size.exact
    assert size.cartesian == 40**6
    expected = 40**6 / 101 / 7 / 11
    assert expected / 10 < size.valid < expected * 2
    rng = random.Random(3)
    sampled = {space.sample(rng) for _ in range(30)}
    assert all(map(space.is_valid, sampled))
    assert len(sampled) > 20
    assert space.is_valid(next(space.enumerate()))
    drawn = {p.name: p.sample(rng) for p in space.parameters}
    assert space.is_valid(space.repair(drawn, rng))


def test_a_condition_does_not_hold_where_it_has_no_value() -> None:
    body = "parameters: {A: [1, 2], B: [1, 2]}\nconstraints: "
    guarded = bind_text(body + "['A == 1 or A + B <= max(3 * (4 // n), 2)']", [{"n": 0}])
    assert [tuple(found.values()) for found in guarded.enumerate()] == [(1, 1), (1, 2)]


def test_constraint_report_counts_what_each_removes() -> None:
    space = bind_text(
        """
parameters: {A: {range: [1, 10]}, B: {range: [1, 10]}}
constraints: [A > 5, {expr: A > 3, reason: small}, "A == B"]
"""
    )
    report = [
        (r.text, r.reason, r.removes_alone, r.removes_last) for r in space.constraint_report()
    ]
    assert report == [("A > 5", "", 50, 2), ("A > 3", "small", 30, 0), ("A == B", "", 90, 45)]
    assert all(r.exact for r in space.constraint_report())


def test_invalid_full_default_is_an_error_and_a_partial_one_is_completed() -> None:
    body = "parameters: {A: [1, 2], B: [1, 2]}\nconstraints: [A < B]\n"
    assert dict(bind_text(body).default()) == {"A": 1, "B": 2}
    assert bind_text(body + "default: {B: 2}").default()["B"] == 2
    wider = body.replace("A < B", "A < B, B != 2 or C == 2").replace("}", ", C: [1, 2]}")
    assert dict(bind_text(wider + "default: {B: 2}").default()) == {"A": 1, "B": 2, "C": 2}
    with pytest.raises(SpaceError, match="the default is not valid: A < B"):
        bind_text(body + "default: {A: 2, B: 1}").default()


TRIED_FIRST = """parameters:
  {A: [1, 2, 3], B: [1, 2, 3], C: [x, y, z], D: {choices: [p, q], when: "A == 1"}}
constraints: [A < B]
default: {A: 2, B: 3, C: y}
"""


@pytest.mark.parametrize(
    ("named", "start"),
    [
        ("C: z", (2, 3, "z", "p")),
        ("", (2, 3, "y", "p")),
        ("A: 1, B: 2, C: x, D: q", (1, 2, "x", "q")),
        ("A: 2, B: 3, C: x, D: p", (2, 3, "x", "p")),
        # Other parameters change where they must; C stays as in the default.
        ("B: 2", (1, 2, "y", "p")),
        ("D: q", (1, 3, "y", "q")),
        ("D: q, B: 2", (1, 2, "y", "q")),
    ],
)
def test_what_is_tried_first_is_the_default_with_other_values(
    named: str, start: tuple[object, ...]
) -> None:
    space = bind_text(f"{TRIED_FIRST}try_first: [{{{named}}}]")
    default, *others = space.starts()
    assert tuple(dict(default).values()) == (2, 3, "y", "p")
    assert [tuple(dict(other).values()) for other in others or [default]] == [start]


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("A: 3", ""),
        ("A: 2, D: q", ""),
        ("A: 2, B: 1, C: x, D: p", ": A < B"),
        ("A: 2, B: 3, C: x, D: q", ": a parameter is not in canonical form"),
    ],
)
def test_what_cannot_be_tried_first_is_an_error_at_its_place(named: str, why: str) -> None:
    space = bind_text(f"{TRIED_FIRST}try_first:\n- {{C: z}}\n- {{{named}}}\n")
    with pytest.raises(SpaceError) as caught:
        space.starts()
    assert str(caught.value).endswith(f":3: no valid configuration has these values{why}")


def test_many_are_tried_first_in_their_order_and_once() -> None:
    entries = ", ".join(f"{{A: {1 + n % 2}, B: 3, C: {'xyz'[n % 3]}}}" for n in range(1000))
    starts = bind_text(f"{TRIED_FIRST}try_first: [{entries}]").starts()
    assert [(start["A"], start["C"]) for start in starts] == [
        *((2, "y"), (1, "x"), (1, "z"), (2, "x")),
        *((1, "y"), (2, "z")),
    ]
