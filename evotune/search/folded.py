"""The state that every strategy has of the trials passed to `tell`: seen configurations, elites,
generations.

No other module uses DEAP: individuals, operators, selection, hall of fame. Two habits of DEAP do
not suit a resumable search: its operators draw from the global `random`, and `creator.create`
writes classes into a module's globals. So the operators of this module take a generator, DEAP's own
selection runs with the global generator set to the caller's, and the classes are plain ones.
"""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar, Final

from deap import base, tools

from evotune.errors import StoreError
from evotune.run_options import SearchSettings
from evotune.search.strategy import Elite
from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration, Json, Trial, Value


class FoldedStrategy:
    """The base of the strategies: the whole protocol except `ask`, and hooks for learning more from
    an outcome.

    `version` changes whenever `tell` would compute a different state, so that an old snapshot is
    refused and the run passes all trials to `tell` again.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    def __init__(self, space: SearchSpace, settings: SearchSettings) -> None:
        self._space = space
        self._settings = settings
        self._names = tuple(parameter.name for parameter in space.parameters)
        self._seen = SeenConfigurations()
        self._unseen = UnseenConfigurations(space, self._seen)
        self._unmeasured = SeenConfigurations()  # whose first outcome was undecided
        # A memo: the neighbours of the elites are needed again and again.
        self._neighbours = lru_cache(maxsize=64)(space.neighbours)
        self._elites = Elites(settings.elites)
        self._told = 0

    @property
    def told(self) -> int:
        return self._told

    @property
    def generation(self) -> int:
        return self._told // self._settings.population

    @property
    def best(self) -> Elite | None:
        return next(iter(self.elites), None)

    @property
    def elites(self) -> Sequence[Elite]:
        return self._elites.ranked

    @property
    def contender(self) -> float | None:
        elites = self.elites
        return elites[-1].fitness if len(elites) == self._settings.elites else None

    def tell(self, trial: Trial) -> None:
        configuration = trial.configuration
        if trial.outcome.undecided and configuration not in self._unmeasured:
            self._unmeasured.add(configuration)  # it may be proposed once more
            self._told += 1
            self._pass_over(trial)
            return
        if configuration in self._seen:
            # Measured again: with two results of one configuration, the luckier one would lead the
            # search (Helion #3518).
            self._elites.forget(configuration)
            self._forget(configuration)
        self._seen.add(configuration)
        self._told += 1
        individual = None
        if trial.outcome.fitness is not None:
            individual = Individual(Elite(trial.number, configuration, trial.outcome.fitness))
            self._elites.add(individual)
        if trial.outcome.undecided:
            self._pass_over(trial)
        else:
            self._learn(trial, individual)

    def snapshot(self) -> Json:
        return {
            **self._identity(),
            "told": self._told,
            "seen": self._seen.snapshot(),
            "unmeasured": self._unmeasured.snapshot(),
            "chronicle": self._elites.snapshot(),
            "learnt": self._snapshot_learnt(),
        }

    def restore(self, snapshot: Json) -> None:
        try:
            self._require_own(snapshot)
            self._told = int(snapshot["told"])
            self._seen.restore(snapshot["seen"])
            self._unmeasured.restore(snapshot.get("unmeasured", ""))
            self._unseen.forget()
            self._elites.restore(snapshot["chronicle"], self._names)
            self._restore_learnt(snapshot["learnt"])
        except StoreError:
            self._forget_everything()
            raise
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            self._forget_everything()
            raise StoreError(f"the snapshot of the search is damaged: {error}") from error

    def _require_own(self, snapshot: Json) -> None:
        """Raises StoreError for the snapshot of another search."""
        found = snapshot if isinstance(snapshot, Mapping) else {}
        for name, expected in self._identity().items():
            if found.get(name) != expected:
                raise StoreError(
                    f"the snapshot of the search has {name} {found.get(name)!r}, "
                    f"this search has {expected!r}"
                )

    def _forget_everything(self) -> None:
        self.__init__(self._space, self._settings)  # type: ignore[misc]

    def _identity(self) -> dict[str, Json]:
        settings = self._settings
        return {
            "strategy": self.name,
            "version": self.version,
            "seed": settings.seed,
            "population": settings.population,
            "elites": settings.elites,
            "parameters": list(self._names),
        }

    def _learn(self, trial: Trial, individual: Individual | None) -> None:
        """Hook: learn a trial. `individual` is None for a failed one."""

    def _pass_over(self, trial: Trial) -> None:
        """Hook: learn that a trial was not measured, which is no failure."""

    def _forget(self, configuration: Configuration) -> None:
        """Hook: forget a configuration's earlier outcome, since it was measured again."""

    def _snapshot_learnt(self) -> Json:
        """Hook: the state that the other hooks keep, as JSON-able data."""
        return None

    def _restore_learnt(self, learnt: Json) -> None:
        """Hook: the inverse of `_snapshot_learnt`."""


# Strong selection and small steps, since a tuning budget is a few hundred trials: of the settings
# tried on recorded kernels, these led throughout the first 300.
_TOURNAMENT_SIZE: Final = 5
_EXTRA_MUTATIONS: Final = 0.3  # genes that mutate besides the one that always does, on average


class HigherIsBetter(base.Fitness):  # type: ignore[misc]  # DEAP has no types
    """DEAP fitness with one objective to maximise."""

    weights = (1.0,)


class Individual(tuple[Value, ...]):
    """A genome (the values in the space's order) with its fitness, in the form that DEAP needs.
    Immutable."""

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
    """DEAP's toolbox with the operators of the space's parameters.

    - mate(first, second, rng), mutate(configuration, rng): return values, which may be invalid.
    - select(individuals, count, rng): returns parents.
    - rank(compromises, k): for several objectives, returns the k best, best first.
    - pair(ranked, count, rng): for several objectives, returns parents.
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
    """Always changes one active gene, and sometimes more.

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
    """The best trials so far: DEAP's hall of fame, in the order that the search needs."""

    def __init__(self, count: int) -> None:
        self.hall = tools.HallOfFame(count, similar=_same_configuration)

    @property
    def ranked(self) -> tuple[Elite, ...]:
        """The elites, best first; among equals the earlier one first (unlike in the hall of
        fame)."""
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


_DIGEST_BYTES = 12  # a billion configurations collide with a probability below 1e-11


class SeenConfigurations:
    """The set of configurations told so far. Each takes about 100 bytes.

    It contains only configurations that the run passed to `tell`. A candidate that a strategy
    considered and dropped stays available: a blacklist of such candidates cost Helion good
    configurations (#3518).
    """

    def __init__(self) -> None:
        self._digests: dict[bytes, None] = {}  # in order: the same trials give the same snapshot

    def add(self, configuration: Configuration) -> None:
        self._digests[_digest(configuration)] = None

    def __contains__(self, configuration: Configuration) -> bool:
        return _digest(configuration) in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def snapshot(self) -> str:
        return base64.b64encode(b"".join(self._digests)).decode()

    def restore(self, snapshot: str) -> None:
        data = base64.b64decode(snapshot)
        self._digests = {
            data[i : i + _DIGEST_BYTES]: None for i in range(0, len(data), _DIGEST_BYTES)
        }


class UnseenConfigurations:
    """Finds configurations of a space that are neither told nor pending.

    Between calls it remembers how far it has enumerated the space. Told configurations are never
    removed, so the answers do not depend on earlier calls.
    """

    def __init__(self, space: SearchSpace, seen: SeenConfigurations) -> None:
        self._space = space
        self._seen = seen
        self.forget()

    def forget(self) -> None:
        """Restarts the enumeration. Call it when the told configurations are replaced."""
        self._rest: Iterator[Configuration] = self._space.enumerate()
        self._passed: list[Configuration] = []  # enumerated, and not told when last looked at

    def is_free(self, configuration: Configuration, pending: Collection[Configuration]) -> bool:
        return configuration not in pending and configuration not in self._seen

    def sample(
        self, rng: random.Random, pending: Collection[Configuration], attempts: int = 256
    ) -> Configuration | None:
        """A free configuration drawn from the space; the first free one when all attempts fail.

        Attempts fail only in a space that is nearly exhausted. None if it is exhausted.
        """
        for _ in range(attempts):
            configuration = self._space.sample(rng)
            if self.is_free(configuration, pending):
                return configuration
        return self.first(pending)

    def first(self, pending: Collection[Configuration]) -> Configuration | None:
        """The first free configuration in the space's order; amortised constant time."""
        self._passed = [c for c in self._passed if c not in self._seen]
        for configuration in self._passed:
            if configuration not in pending:
                return configuration
        for configuration in self._rest:
            if configuration in self._seen:
                continue
            self._passed.append(configuration)
            if configuration not in pending:
                return configuration
        return None


def _digest(configuration: Configuration) -> bytes:
    return hashlib.blake2b(configuration.key.encode(), digest_size=_DIGEST_BYTES).digest()
