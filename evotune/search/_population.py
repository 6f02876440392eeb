"""The one module that touches DEAP: individuals, operators, selection, hall of fame.

Two habits of DEAP do not suit a resumable search: its operators draw from the global `random`, and
`creator.create` writes classes into a module's globals. So the operators here take a generator,
DEAP's own selection runs with the global one set to the caller's, and the classes are plain ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from deap import base, tools

from evotune.search.strategy import Elite
from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration, Json, Value

# Strong selection and small steps, since a tuning budget is a few hundred trials: of the settings
# tried on recorded kernels, these led throughout the first 300.
_TOURNAMENT_SIZE: Final = 5
_EXTRA_MUTATIONS: Final = 0.3  # genes that mutate besides the one that always does, on average


class HigherIsBetter(base.Fitness):  # type: ignore[misc]  # DEAP has no types
    """DEAP fitness with one objective to maximise."""

    weights = (1.0,)


class Individual(tuple[Value, ...]):
    """A genome (the values in the space's order) with its fitness, as DEAP needs it. Immutable."""

    elite: Elite
    fitness: HigherIsBetter

    def __new__(cls, elite: Elite) -> Individual:
        individual = super().__new__(cls, elite.configuration.values())
        individual.elite = elite
        individual.fitness = HigherIsBetter((elite.fitness,))
        return individual

    def __deepcopy__(self, memo: dict[int, Any]) -> Individual:
        return self  # the hall of fame copies its entries; this object cannot change

    def to_json(self) -> Json:
        return [self.elite.number, self.elite.fitness, list(self)]

    @classmethod
    def from_json(cls, data: Json, names: Sequence[str]) -> Individual:
        number, fitness, values = data
        return cls(Elite(number, Configuration(dict(zip(names, values, strict=True))), fitness))


class ManyObjectives(base.Fitness):  # type: ignore[misc]  # DEAP has no types
    """DEAP fitness with one objective for each value, all to maximise."""

    def __init__(self, values: Sequence[float]) -> None:
        self.weights = (1.0,) * len(values)
        super().__init__(values)


class Compromise:
    """A successful trial with its figures, for DEAP's selection by several objectives."""

    __slots__ = ("configuration", "fitness")

    def __init__(self, configuration: Configuration, figures: Sequence[float]) -> None:
        self.configuration = configuration
        self.fitness = ManyObjectives(figures)


@contextmanager
def lent_global_random(rng: random.Random) -> Iterator[None]:
    """Lets the global `random` continue `rng`'s stream, and restores its state at the end."""
    saved = random.getstate()
    random.setstate(rng.getstate())
    try:
        yield
    finally:
        rng.setstate(random.getstate())
        random.setstate(saved)


def create_toolbox(space: SearchSpace) -> base.Toolbox:
    """DEAP's toolbox with the operators that the space's parameters own.

    - mate(first, second, rng), mutate(configuration, rng): values, which may be invalid.
    - select(individuals, count, rng): parents.
    - rank(compromises, k): for several objectives, the k best, best first.
    - pair(ranked, count, rng): for several objectives, parents.
    """
    toolbox = base.Toolbox()
    toolbox.register("mate", _mate, space)
    toolbox.register("mutate", _mutate, space)
    toolbox.register("select", _select, tournament_size=_TOURNAMENT_SIZE)
    toolbox.register("rank", tools.selNSGA2)
    toolbox.register("pair", _pair)
    return toolbox


def _mate(
    space: SearchSpace, first: Configuration, second: Configuration, rng: random.Random
) -> dict[str, Value]:
    ours, theirs = first.to_json(), second.to_json()
    return {
        parameter.name: parameter.cross(ours[parameter.name], theirs[parameter.name], rng)
        for parameter in space.parameters
    }


def _mutate(
    space: SearchSpace, configuration: Configuration, rng: random.Random
) -> dict[str, Value]:
    """Changes one active gene always, and sometimes further ones.

    A gene that mating made active may still have its inactive value. If that lies outside the
    domain, a value is drawn.
    """
    values = configuration.to_json()
    active = frozenset(space.active(configuration))
    genes = [parameter for parameter in space.parameters if parameter.name in active]
    if not genes:
        return values
    certain = rng.randrange(len(genes))
    for i, parameter in enumerate(genes):
        if i == certain or rng.random() * len(genes) < _EXTRA_MUTATIONS:
            value = values[parameter.name]
            known = value in parameter
            values[parameter.name] = (
                parameter.mutate(value, rng) if known else parameter.sample(rng)
            )
    return values


def _select(
    individuals: Sequence[Individual], count: int, rng: random.Random, tournament_size: int
) -> list[Individual]:
    with lent_global_random(rng):
        winners: list[Individual] = tools.selTournament(individuals, count, tournament_size)
    return winners


def _pair(ranked: list[Compromise], count: int, rng: random.Random) -> list[Compromise]:
    with lent_global_random(rng):
        winners: list[Compromise] = tools.selTournamentDCD(ranked, count)
    return winners


class Elites:
    """The best trials so far: DEAP's hall of fame, with the order that the search needs."""

    def __init__(self, count: int) -> None:
        self.hall = tools.HallOfFame(count, similar=_same_configuration)

    @property
    def ranked(self) -> tuple[Elite, ...]:
        """Best first; among equals the earlier first (unlike in the hall of fame)."""
        elites = (individual.elite for individual in self.hall)
        return tuple(sorted(elites, key=lambda elite: (-elite.fitness, elite.number)))

    def add(self, individual: Individual) -> None:
        self.hall.update([individual])

    def forget(self, configuration: Configuration) -> None:
        for i, individual in enumerate(self.hall):
            if individual.elite.configuration == configuration:
                self.hall.remove(i)
                break

    def snapshot(self) -> dict[str, Json]:
        return {"hall": [individual.to_json() for individual in self.hall]}

    def restore(self, snapshot: Mapping[str, Json], names: Sequence[str]) -> None:
        self.hall.clear()
        # From the worst to the best, as the hall puts a newcomer before its equals.
        for data in reversed(snapshot["hall"]):
            self.hall.update([Individual.from_json(data, names)])


def _same_configuration(first: Individual, second: Individual) -> bool:
    """Compares configurations, since the tuples (1,) and (True,) would be equal."""
    return first.elite.configuration == second.elite.configuration
