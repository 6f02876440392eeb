"""The state that every strategy keeps of the outcomes told: seen trials, elites, generations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from evotune.errors import StoreError
from evotune.run_options import SearchSettings
from evotune.search._population import Elites, Individual
from evotune.search._unseen import SeenConfigurations, UnseenConfigurations
from evotune.search.strategy import Elite
from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration, Json, Trial


class FoldedStrategy:
    """The base of the strategies: the whole protocol but `ask`, and hooks for further learning.

    `version` changes whenever `tell` computes another state, so that an old snapshot is refused and
    the engine tells the trials again.
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
            self._unmeasured.add(configuration)  # it stays free to be asked once more
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
        """StoreError for the snapshot of another search."""
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
