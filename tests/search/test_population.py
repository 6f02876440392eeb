from __future__ import annotations

import math
import random
import statistics

import pytest
from deap import tools

from evotune.search.folded import (
    Elites,
    HigherIsBetter,
    Individual,
    create_toolbox,
    lent_global_random,
)
from evotune.search.strategy import Elite
from evotune.trial import Configuration

from .landscapes import small_space

NAMES = tuple(parameter.name for parameter in small_space().parameters)
MEMBERS = list(small_space().enumerate())


def individual(number: int, fitness: float) -> Individual:
    return Individual(Elite(number, MEMBERS[number], fitness))


def test_an_individual_is_its_genome_with_a_fitness_to_maximise() -> None:
    low, high = individual(0, -2.0), individual(1, -1.0)
    assert tuple(low) == tuple(MEMBERS[0].values())
    assert high.fitness > low.fitness
    assert isinstance(low.fitness, HigherIsBetter)
    assert low.fitness.values == (-2.0,)


def test_an_individual_survives_json() -> None:
    original = individual(7, math.log(1.1))
    again = Individual.from_json(original.to_json(), NAMES)
    assert again.elite == original.elite
    assert again.fitness == original.fitness


def test_lent_global_random_continues_the_stream_and_is_given_back() -> None:
    random.seed(42)
    outer = random.getstate()
    lent, kept = random.Random(1), random.Random(1)
    with lent_global_random(lent):
        drawn = [random.random() for _ in range(3)]
    assert random.getstate() == outer
    assert drawn == [kept.random() for _ in range(3)]
    assert lent.random() == kept.random()


def test_the_global_state_is_given_back_after_an_error_too() -> None:
    outer = random.getstate()
    with pytest.raises(IndexError), lent_global_random(random.Random(1)):
        random.choice([])
    assert random.getstate() == outer


def test_mate_takes_every_gene_from_a_parent() -> None:
    mate = create_toolbox(small_space()).mate
    first, second = MEMBERS[0], MEMBERS[-1]
    rng = random.Random(3)
    children = [mate(first, second, rng) for _ in range(50)]
    assert all(child[n] in (first[n], second[n]) for child in children for n in NAMES)
    assert len({tuple(child.values()) for child in children}) > 5


def test_mutate_changes_one_gene_or_a_few() -> None:
    mutate = create_toolbox(small_space()).mutate
    rng = random.Random(3)
    changed = []
    for _ in range(300):
        child = mutate(MEMBERS[5], rng)
        changed.append(sum(child[n] != MEMBERS[5][n] for n in NAMES))
    assert min(changed) == 1
    assert 1.1 < statistics.fmean(changed) < 1.5


def test_select_prefers_the_fitter() -> None:
    toolbox = create_toolbox(small_space())
    population = [individual(i, float(i)) for i in range(20)]
    rng = random.Random(0)
    chosen = [parent.elite.number for parent in toolbox.select(population, 400, rng)]
    assert statistics.fmean(chosen) > 14  # 9.5 without selection


def test_the_best_distinct_elites_are_kept_in_deaps_hall_of_fame() -> None:
    elites = Elites(2)
    for number, fitness in enumerate([0.1, 0.5, 0.3, 0.5]):
        elites.add(individual(number, fitness))
    assert isinstance(elites.hall, tools.HallOfFame)
    assert [(e.number, e.fitness) for e in elites.ranked] == [(1, 0.5), (3, 0.5)]


def test_true_and_one_are_different_genes() -> None:
    elites = Elites(2)
    elites.add(Individual(Elite(0, Configuration({"A": True}), 1.0)))
    elites.add(Individual(Elite(1, Configuration({"A": 1}), 2.0)))
    assert [e.number for e in elites.ranked] == [1, 0]


def test_equal_elites_keep_their_order_in_a_snapshot() -> None:
    elites = Elites(3)
    for number in range(5):
        elites.add(individual(number, 1.0))
    restored = Elites(3)
    restored.restore(elites.snapshot(), NAMES)
    assert restored.ranked == elites.ranked
    for copy in (elites, restored):
        copy.add(individual(6, 1.0))
        copy.add(individual(7, 2.0))
    assert [e.number for e in restored.ranked] == [e.number for e in elites.ranked]
