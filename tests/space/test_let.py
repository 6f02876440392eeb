"""`let`: named expressions, as many and as deep as a space file may have them."""

from __future__ import annotations

import random

import pytest

from evotune.errors import SpaceError

from .spaces import bind_text

PARAMETERS = "parameters: {A: [1, 2], B: {values: [1, 2], when: WHEN}}\n"


def chain(step: str, count: int) -> str:
    """`count` lets, each built on the one before it, which `step` writes as @."""
    lines = [f'  L{i}: "{step.replace("@", f"L{i - 1}" if i else "A")}"\n' for i in range(count)]
    return "let:\n" + "".join(lines)


STEPS = {
    "sum": ("@ + 1", "LAST > 257"),
    "twice": ("@ - @ // 2", "LAST == 1"),
    "least": ("min(max(@, 0, A), @ + 1, 9)", "LAST >= 2"),
    "choice": ("@ if @ > 0 and A > 0 else @ + 1", "LAST > 1"),
    "and": ("@ > 0 and @ > 0 or @ == A", "LAST"),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("step", STEPS)
def test_as_many_lets_as_there_may_be_can_build_on_each_other(step: str) -> None:
    definition, condition = STEPS[step]
    condition = condition.replace("LAST", "L255")
    parameters = PARAMETERS.replace("WHEN", f'"{condition}"')
    body = chain(definition, 256) + parameters
    space = bind_text(f'{body}constraints: ["{condition}"]\n')
    members = list(space.enumerate())
    assert len(members) == space.size().valid > 0
    assert all(map(space.is_valid, members))
    assert space.sample(random.Random(0)) in members
    assert {member["B"] for member in members} == {1, 2}  # B is active where it holds
    free = bind_text(body)
    (report,) = space.constraint_report()
    assert free.size().valid - space.size().valid == report.removes_last
    (constraint,) = space.constraints
    for member in free.enumerate():
        holds = bool(space.evaluate(constraint.spec.expression, member, {"n": 64}))
        assert holds == (member in members) == space.is_valid(member)


def test_one_let_more_is_refused_at_its_place() -> None:
    with pytest.raises(SpaceError, match=r":5:3: expected at most 256 keys, found 257"):
        bind_text(chain("@ + 1", 257) + PARAMETERS.replace("WHEN", "A == 1"))


def test_deep_expressions_in_lets_can_build_on_each_other() -> None:
    deep = "(" * 40 + "@" + " + 1)" * 40
    body = chain(deep, 256) + PARAMETERS.replace("WHEN", "A == 1")
    space = bind_text(f"{body}constraints: [L255 == {40 * 256} + 2]\n")
    assert [member["A"] for member in space.enumerate()] == [2]


def test_a_deep_let_without_a_value_counts_only_where_it_is_looked_at() -> None:
    body = chain("@ * 8", 256) + PARAMETERS.replace("WHEN", "A == 1")
    space = bind_text(f"{body}constraints: [A == 2 or L255 > 0]\n")
    assert {member["A"] for member in space.enumerate()} == {2}
    guarded = bind_text(f"{body}constraints: [A < 3 or L255 > 0]\n")
    assert {member["A"] for member in guarded.enumerate()} == {1, 2}


def test_lets_of_one_when_may_share_others() -> None:
    """Each let is followed once; to follow each use would take 2 to the power of 256 steps."""
    lets = chain("@ + @ * 0", 256)
    space = bind_text(lets + PARAMETERS.replace("WHEN", "L255 > 1"))
    assert [tuple(member.values()) for member in space.enumerate()] == [(1, 1), (2, 1), (2, 2)]
    circle = lets + "parameters: {A: {values: [1, 2], when: L255 > 1}}"
    with pytest.raises(SpaceError, match="'when' depends on itself: A -> A"):
        bind_text(circle)
