"""Random shapes that are drawn once in a process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from evotune.problems.attention import Attention
from evotune.problems.pair_cover import drawn_once, key_of

from . import kept_cases


def test_shapes_are_drawn_once_for_each_key() -> None:
    drawn: list[int] = []

    def draw() -> Iterator[dict[str, int]]:
        for number in count():
            drawn.append(number)
            yield {"rows": number}

    first = list(islice(drawn_once(key_of("a", {"rows": 1}), draw), 3))
    again = list(islice(drawn_once(key_of("a", {"rows": 1}), draw), 4))
    assert first == again[:3]
    assert drawn == [0, 1, 2, 3]
    next(drawn_once(key_of("a", {"rows": 2}), draw))
    assert drawn == [0, 1, 2, 3, 0]


def test_a_reader_may_change_its_shape() -> None:
    def draw() -> Iterator[dict[str, int]]:
        return ({"rows": number} for number in count())

    for _ in range(2):
        shape = next(drawn_once("changed", draw))
        assert shape == {"rows": 0}
        shape["rows"] = 7


def test_cases_of_one_plan_are_those_of_the_next() -> None:
    problem, own = kept_cases.timed("attention_cpu")
    other = Attention(problem.dtype)
    for seed in (1, 2, 1):
        drawn = [list(islice(each.random_cases(own, seed), 40)) for each in (problem, other)]
        assert drawn[0] == drawn[1]
