"""The trees of a rule: the best ones over their borders, found in seconds."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest
from counting import calls_made

from evotune.portfolios.matrix_store import Point
from evotune.portfolios.rule import Leaf, learnt_leaves
from evotune.problems.problem import Place
from tests.portfolios.made_up import score
from tests.sweeps import swept

PRICE = 0.0015


def made(
    label: int, sizes: Sequence[int], speedups: Sequence[float | None], weight: float = 1.0
) -> Point:
    features = {f"size{number}": size for number, size in enumerate(sizes)}
    return Point(str(label), weight, Place({}, features), features, tuple(map(score, speedups)))


def value(leaves: Sequence[Leaf]) -> float:
    """What a rule with these leaves is worth."""
    total = sum(point.weight for leaf in leaves for point in leaf.points) or 1.0
    return sum(
        sum(point.weight * point.gain(leaf.kernel) for point in leaf.points) / total - PRICE
        for leaf in leaves
        if leaf.kernel is not None
    )


def best_value(points: Sequence[Point], kernels: Sequence[int]) -> float:
    """The same of the best tree of all, by trying every one."""
    total = sum(point.weight for point in points) or 1.0

    @functools.cache
    def best(numbers: tuple[int, ...]) -> float:
        inside = [points[number] for number in numbers]
        found = 0.0
        for kernel in kernels:
            scores = [point.scores[kernel] for point in inside]
            if all(each is None or each.won for each in scores):
                gain = sum(point.weight * point.gain(kernel) for point in inside) / total
                found = max(found, gain - PRICE)
        for name in points[0].features:
            for border in {point.features[name] for point in inside}:
                low = tuple(n for n in numbers if points[n].features[name] <= border)
                high = tuple(n for n in numbers if n not in low)
                if high:
                    found = max(found, best(low) + best(high))
        return found

    return best(tuple(range(len(points))))


@pytest.mark.parametrize("seed", range(60))
def test_no_tree_is_better_and_no_leaf_names_a_kernel_that_lost(seed: int) -> None:
    rng = random.Random(seed)
    features, kernels = rng.randint(1, 3), range(rng.randint(1, 3))
    points = [
        made(
            number,
            [rng.choice((1, 2, 4, 8, 16, 32)) for _ in range(features)],
            [rng.choice((None, 0.0, 0.9, 1.001, 1.05, 1.3, 1.3)) for _ in kernels],
            rng.choice((0.0, 1.0, 1.0, 5.0)),
        )
        for number in range(rng.randint(1, 12))
    ]
    leaves = learnt_leaves(points, kernels)
    assert value(leaves) == pytest.approx(best_value(points, kernels), abs=1e-7)
    assert sorted(p.label for leaf in leaves for p in leaf.points) == sorted(
        p.label for p in points
    )
    for leaf in leaves:
        for p in leaf.points:
            assert all(p.features[name] > least for name, least in leaf.above.items())
            assert all(p.features[name] <= most for name, most in leaf.upto.items())
            known = None if leaf.kernel is None else p.scores[leaf.kernel]
            assert known is None or known.won


@pytest.mark.parametrize("features", swept((1, 2, 3), lambda each: each == 1))
def test_the_work_on_a_thousand_cases_is_bounded(features: int) -> None:
    rng = random.Random(0)
    points = [
        made(
            number,
            [rng.randint(1, 10_000) for _ in range(features)],
            [0.9 if rng.random() < 0.05 else rng.uniform(1.0, 1.5) for _ in range(8)],
        )
        for number in range(1000)
    ]
    leaves: list[Leaf] = []
    calls_made(lambda: leaves.extend(learnt_leaves(points, range(8))), 20_000_000)
    assert sum(len(leaf.points) for leaf in leaves if leaf.kernel is not None) > 950


@pytest.mark.parametrize("features", swept((1, 3, 7), lambda each: each == 3))
def test_a_kernel_that_wins_between_the_borders_of_a_coarse_grid_is_served(features: int) -> None:
    """It wins where the first size is about the middle, and on both sides of a border it loses."""
    rng = random.Random(0)
    count = 600
    points = [
        made(
            number,
            [number, *(rng.randint(1, 1000) for _ in range(features - 1))],
            [1.4 if 251 <= number < 349 else 0.9],
        )
        for number in range(count)
    ]
    leaves = learnt_leaves(points, [0])
    served = [leaf for leaf in leaves if leaf.kernel is not None]
    assert sum(len(leaf.points) for leaf in served) >= 70


def test_of_equal_trees_the_smallest_is_taken() -> None:
    """A case of weight 0 gains nothing, so a leaf without it is worth as much."""
    sizes = (1, 2, 4, 8, 16)
    points = [made(size, [size], [1.3, 1.3001], 0.0 if size == 16 else 1.0) for size in sizes]
    points[0] = made(1, [1], [1.3, 0.9])
    (leaf,) = learnt_leaves(points, [0, 1])
    assert leaf.kernel == 0


@pytest.mark.parametrize("unit", [1e-12, 1.0, 2.0**50])
def test_the_unit_of_weights_changes_nothing(unit: float) -> None:
    rng = random.Random(3)
    points = [
        made(n, [rng.randint(1, 40), rng.randint(1, 40)],
             [rng.choice((0.9, 1.1, 1.2, 1.3)) for _ in range(3)], unit * rng.randint(1, 5))
        for n in range(40)
    ]  # fmt: skip
    alike = [made(int(p.label), [*p.features.values()], [], p.weight / unit) for p in points]
    alike = [a.with_scores(p.scores) for a, p in zip(alike, points, strict=True)]
    found, wanted = learnt_leaves(points, range(3)), learnt_leaves(alike, range(3))
    assert [leaf.kernel for leaf in found] == [leaf.kernel for leaf in wanted]
    assert any(leaf.kernel is not None for leaf in found)
