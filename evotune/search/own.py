"""Strategies that users write: classes with `ask` and `tell`, completed to the whole protocol."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeAlias

from evotune.errors import StoreError, UsageError
from evotune.run_options import SearchSettings
from evotune.search._population import Individual
from evotune.search.folded import FoldedStrategy
from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration, Json, Trial, Value
from evotune.util.words import shorten


class AskTell(Protocol):
    """A strategy of your own: `tune(strategy=Mine)` calls `Mine(space, settings)`.

    Its answers must depend on nothing but the space, the settings (`settings.seed`) and the trials
    told: a resumed run makes a new object and tells it all trials again.

    >>> import evotune
    >>> class Descent:
    ...     def __init__(self, space, settings):
    ...         self.waiting = [space.default()]
    ...         self.known = set(self.waiting)
    ...         self.space, self.best = space, None
    ...
    ...     def ask(self, number, pending):
    ...         return self.waiting.pop(0) if self.waiting else None
    ...
    ...     def tell(self, trial):
    ...         fitness = trial.outcome.fitness
    ...         if fitness is not None and (self.best is None or fitness > self.best):
    ...             self.best = fitness
    ...             near = self.space.neighbours(trial.configuration)
    ...             self.waiting += [c for c in near if c not in self.known]
    ...             self.known.update(near)
    """

    def ask(
        self, number: int, pending: Sequence[Configuration]
    ) -> Configuration | Mapping[str, Value] | None:
        """Proposal `number`: a configuration of the space that was neither told nor is in
        `pending`, the proposals not told yet. None ends the search."""

    def tell(self, trial: Trial) -> None:
        """Learns a trial; trials come in the order of their numbers. `trial.outcome.fitness` is
        None for a failed one, else the higher the better. A configuration whose outcome is
        `undecided` was not measured, and may be asked for once more."""


StrategyMaker: TypeAlias = Callable[[SearchSpace, SearchSettings], AskTell]
"""A class with `ask` and `tell`, or a function that returns an object with both."""


def maker_name(maker: StrategyMaker) -> str:
    """`module:qualified name`, as a run's store keeps it. UsageError when `maker` cannot be
    called."""
    inner: object = maker
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(inner):
        raise UsageError(
            f"strategy: expected a name, a class with ask and tell, or a function of (space, "
            f"settings), found a {type(inner).__name__}"
        )
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{getattr(inner, '__module__', None) or '?'}:{name}"


class OwnStrategy(FoldedStrategy):
    """The whole protocol around an object that a user's class made; checks its proposals."""

    name: ClassVar[str] = "own"

    def __init__(self, space: SearchSpace, settings: SearchSettings, maker: StrategyMaker) -> None:
        super().__init__(space, settings)
        self._title = maker_name(maker)
        self._own = maker(space, settings)
        missing = [name for name in ("ask", "tell") if not callable(getattr(self._own, name, None))]
        if missing:
            raise UsageError(f"the strategy {self._title} lacks {' and '.join(missing)}")

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        found = self._own.ask(number, pending)
        if found is None:
            return None
        what = f"the strategy {self._title} asked for {shorten(str(found), 200)}"
        if not isinstance(found, Mapping) or set(found) != set(self._names):
            raise UsageError(f"{what}: expected a value for each of {', '.join(self._names)}")
        configuration = Configuration({name: found[name] for name in self._names})
        if not self._space.is_valid(configuration):
            raise UsageError(f"{what}, which is not a valid configuration of the space")
        if configuration in self._seen or configuration in pending:
            raise UsageError(f"{what}, which it asked for before: ask for each configuration once")
        return configuration

    def _learn(self, trial: Trial, individual: Individual | None) -> None:
        self._own.tell(trial)

    def _pass_over(self, trial: Trial) -> None:
        self._own.tell(trial)

    def snapshot(self) -> Json:
        """None, since the user's object cannot save its state."""
        return None

    def restore(self, snapshot: Json) -> None:
        """Raises StoreError, so that the engine tells all trials again."""
        raise StoreError(f"the strategy {self._title} has no snapshot")
