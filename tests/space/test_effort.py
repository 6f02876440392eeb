"""Spaces too entangled to count still get an answer, the same one on every machine."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.errors import SpaceError
from evotune.run_options import SearchSettings
from evotune.search.catalog import create_strategy
from evotune.space import counting
from evotune.space.bound import BoundSpace
from evotune.space.counting import Members
from evotune.space.counting.blame import find_crowd
from evotune.space.counting.expansion import Deadline, Effort
from evotune.trial import Configuration
from tests.sweeps import swept

from .spaces import bind_text

ENTANGLED = [
    "K * H + D * J == F * I",
    "K * H + D * G == F * E",
    "J * K + E * D == A * H",
    "I * K + F * C == D * L",
    "E * L + I * F == C * J",
]
HOPELESS = [
    " + ".join(f"{1 + (i * k) % 9} * {a} * {b}" for i, (a, b) in enumerate(zip(L, R, strict=True)))
    + f" == {20000 + 17 * k}"
    for k, (L, R) in enumerate([("ABCDEFGHIJKL", "LKJIHGFEDCBA")] * 5, start=1)
]


class Clock:
    """A clock that moves a second at each call."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def quadratic(constraints: Sequence[str]) -> BoundSpace:
    names = "".join(f"  {name}: {{range: [1, 32]}}\n" for name in "ABCDEFGHIJKL")
    listed = "".join(f"  - {text}\n" for text in constraints)
    return bind_text(f"parameters:\n{names}constraints:\n{listed}")


def all_different(count: int, values: str) -> BoundSpace:
    names = [f"P{i}" for i in range(count)]
    domains = "".join(f"  {name}: {values}\n" for name in names)
    pairs = "".join(f"  - {a} != {b}\n" for a, b in itertools.combinations(names, 2))
    return bind_text(f"parameters:\n{domains}constraints:\n{pairs}")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("[0, 1]", "3 parameters that must all differ (P0 and P1 and P2) have 2 values"),
        ("[false, true]", "3 parameters that must all differ (P0 and P1 and P2) have 2 values"),
        ("{range: [1, 19]}", "20 parameters that must all differ (P0 and P1 and P2 and P3 and P4 "),
    ],
)
def test_more_parameters_than_values_that_must_all_differ(values: str, words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        all_different(20, values).size()
    assert words in caught.value.message
    assert "`P0 != P1` (line 26) and `P0 != P2` (line 27)" in caught.value.message
    assert caught.value.line > 26


def test_as_many_values_as_parameters_that_must_all_differ_are_enough() -> None:
    space = all_different(20, "{range: [1, 20]}")
    assert not space.size().exact
    drawn = space.sample(random.Random(0))
    assert sorted(drawn.values()) == list(range(1, 21))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True), min_size=2, max_size=5
    ),
    st.data(),
)
def test_a_crowd_is_found_only_in_a_space_that_is_empty(
    domains: list[list[int]], data: st.DataObject
) -> None:
    names = [f"P{i}" for i in range(len(domains))]
    pairs = data.draw(st.sets(st.sampled_from(list(itertools.combinations(names, 2)))))
    listed = "".join(f"  {name}: {values}\n" for name, values in zip(names, domains, strict=True))
    constraints = [f"not ({a} == {b})" if a == "P0" else f"{a} != {b}" for a, b in sorted(pairs)]
    space = bind_text(f"parameters:\n{listed}constraints: {constraints}\n")
    crowd = find_crowd(space._variables, space._rules.conditions)
    members = [
        point
        for point in itertools.product(*domains)
        if all(point[names.index(a)] != point[names.index(b)] for a, b in pairs)
    ]
    assert crowd is None or not members


def test_a_space_in_which_nothing_is_found_is_refused_with_its_constraints() -> None:
    with pytest.raises(SpaceError) as caught:
        quadratic(HOPELESS).default()
    assert caught.value.line == 22
    assert caught.value.message.startswith("found no configuration in 4,000,000,000 steps; const")
    assert "== 20017` (line 18) and `" in caught.value.message


@pytest.mark.sweep(3)
@pytest.mark.parametrize("constraints", [ENTANGLED, HOPELESS])
@pytest.mark.parametrize("steps", [10_000_000, 100_000_000])
def test_counting_takes_no_more_steps_than_it_may(
    constraints: list[str], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, expand = 0, counting.expand

    def counted(variable, step, states, *others):  # type: ignore[no-untyped-def]
        nonlocal taken
        taken += states.count * len(variable.values) * step.row_steps
        return expand(variable, step, states, *others)

    monkeypatch.setattr(counting, "expand", counted)
    space = quadratic(constraints)
    Members(space._variables, space._rules.conditions, space._interner, Effort(steps=steps))
    least = 4 * sum(32 * 1000 for _ in space.genes)  # one state of each layer is always kept
    assert taken <= steps + least


def test_what_a_search_asks_for_depends_on_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> list[Configuration]:
        space = quadratic(ENTANGLED)
        drawn = [space.sample(random.Random(seed)) for seed in range(5)]
        search = create_strategy("evolution", space, SearchSettings())
        proposals = [search.ask(number, ()) for number in range(3)]
        return [space.default(), *drawn, *(p for p in proposals if p is not None)]

    first = asked()
    assert len(set(first)) > 5

    def no_clock(seconds: float) -> Deadline:
        raise AssertionError("a clock was looked at")

    monkeypatch.setattr(Deadline, "after", no_clock)
    assert asked() == first


@pytest.mark.parametrize(
    "strategy",
    swept(
        ("evolution", "local", "random", "exhaustive", "nsga2"),
        lambda strategy: strategy in ("evolution", "random"),
    ),
)
def test_every_strategy_begins_on_a_space_that_is_not_counted(strategy: str) -> None:
    space = quadratic(ENTANGLED)
    assert not space.size().exact
    settings = SearchSettings()
    if strategy == "nsga2":
        settings = SearchSettings(objectives=("speedup", "error"))
    search = create_strategy(strategy, space, settings)
    proposal = search.ask(0, ())
    assert proposal is not None
    assert space.is_valid(proposal)


def test_listing_gives_up_after_the_same_steps_wherever_it_is_done() -> None:
    space = bind_text(
        "parameters:\n"
        + "".join(f"  P{i}: {{range: [1, 40]}}\n" for i in range(8))
        + "constraints: [P0 + P1 < 6, (P0 * P7 + P1 * P6 + P2 * P5 + P3 * P4) % 9973 == 17,"
        + " (P0 * P4 + P1 * P5 + P2 * P6 + P3 * P7) % 9967 == 17]\n"
    )
    listed = [list(itertools.islice(space.enumerate(), 50)) for _ in range(2)]
    assert listed[0] == listed[1]
    assert all(map(space.is_valid, listed[0]))


def test_constraints_that_there_is_no_time_to_count_are_reported_without_numbers() -> None:
    space = quadratic(ENTANGLED)
    in_time = space.constraint_report(Deadline.after(1e9, Clock()))
    assert all(None not in (row.removes_alone, row.removes_last) for row in in_time)
    clock = Clock()
    late = space.constraint_report(Deadline.after(100.0, clock))
    assert [row.text for row in late] == [text.replace("  ", " ") for text in ENTANGLED]
    assert any(row.removes_last is None for row in late)
    assert clock.now_s < 150  # each count ends soon after the deadline
    assert space.constraint_report(Deadline.after(-1.0, Clock()))[0].removes_alone is None


def test_a_cheap_constraint_is_counted_after_one_that_takes_too_long() -> None:
    first, *others = quadratic([*ENTANGLED, "A > 1"]).constraint_report(
        Deadline.after(140, Clock())
    )
    assert first.removes_last is None
    assert others[-1].removes_alone is not None


def test_blame_that_runs_out_of_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "parameters: {A: {range: [1, 9]}, B: {range: [1, 9]}, C: {range: [1, 9]}}\n"
    constraints = "constraints: [A > B, B > C, C > A, A < 9]\n"
    narrow = "no configuration satisfies all of `A > B` (line 5) and `B > C` (line 5) and `C > A`"
    with pytest.raises(SpaceError) as caught:
        bind_text(body + constraints).size()
    assert caught.value.message == f"{narrow} (line 5)"
    monkeypatch.setattr("evotune.space.bound.SHOWN_S", -1.0)
    with pytest.raises(SpaceError, match="not narrowed down further within 10 s") as caught:
        bind_text(body + constraints).size()
    assert narrow in caught.value.message
