"""How a run searches and when it ends: one value for space files, callers, store and search loop.

A space file gives the first values, `tune` and the command line replace some of them, the run's
store keeps the result, and the search loop reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from evotune.errors import UsageError
from evotune.trial import OBJECTIVES, SINGLE_OBJECTIVE, Json, Value


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """The settings of a strategy. On one space, equal settings and outcomes give equal proposals.

    - `seed`: decides every random choice.
    - `population`: the number of trials in a generation.
    - `elites`: the number of best trials that the strategy keeps.
    - `lookahead`: the strategy makes proposal n when it knows the outcomes of the trials before
      n - `lookahead`, and no others. `SearchLoop` ensures this.
    - `objectives`: names from `evotune.trial`. `nsga2` searches for all of them, every other
      strategy for the speedup.
    """

    seed: int = 0
    population: int = 32
    elites: int = 8
    lookahead: int = 16
    objectives: tuple[str, ...] = SINGLE_OBJECTIVE

    def __post_init__(self) -> None:
        if self.population < 2:
            raise UsageError(f"a population needs at least 2 members, got {self.population}")
        if not 1 <= self.elites <= self.population:
            raise UsageError(
                f"elites must be between 1 and the population of {self.population}, "
                f"got {self.elites}"
            )
        if self.lookahead < 0:
            raise UsageError(f"lookahead must not be negative, got {self.lookahead}")
        for name in self.objectives:
            if name not in OBJECTIVES:
                raise UsageError(f"unknown objective {name!r}; there are {', '.join(OBJECTIVES)}")


_Count: TypeAlias = Annotated[int, Meta(ge=1)]
_Positive: TypeAlias = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class RunOptions(SearchSettings):
    """The settings of the search, and the rest of a run's options.

    - `strategy`: the name of the strategy, or `module:Class` for a user's own.
    - `trials`, `minutes`, `compiles` (trials that reached a compiler), `speedup` (to reach) and
      `no_improvement` (trials in a row without a better one) end the run; None: no such limit.
    - `champions`: how many of the best trials to confirm.
    - `racing`: candidates that cannot win get fewer samples.
    - `starts`: distinct configurations that are proposed before the strategy's own.
    """

    strategy: str = "evolution"
    trials: _Count = 1000
    minutes: _Positive | None = None
    compiles: _Count | None = None
    speedup: _Positive | None = None
    no_improvement: _Count | None = None
    champions: Annotated[int, Meta(ge=0)] = 3
    racing: bool = True
    starts: tuple[Mapping[str, Value], ...] = ()

    @property
    def seconds(self) -> float | None:
        """The limit on the whole run in s, from `minutes`."""
        return None if self.minutes is None else 60 * self.minutes

    def replaced(self, given: Mapping[str, Json]) -> RunOptions:
        """The options with the values `given` by name; None leaves a value unchanged. Raises
        UsageError for a value of another type or range."""
        wanted = {name: value for name, value in given.items() if value is not None}
        try:
            return msgspec.convert({**self.to_json(), **wanted}, RunOptions)
        except msgspec.ValidationError as error:
            what, _, place = str(error).partition(" - at ")
            raise UsageError(f"{place.strip('`').removeprefix('$.')}: {what.lower()}") from error

    def to_json(self) -> dict[str, Json]:
        """The options in the form that a run's store has."""
        found: dict[str, Json] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_json(cls, stored: Json) -> RunOptions:
        """Reads the options from a run's store. Raises TypeError or ValueError if a value is
        invalid. Options that the store of an older evotune lacks get their defaults.
        """
        for name in _ALWAYS_STORED:
            if name not in stored:
                raise ValueError(f"the setting {name} is missing")
        try:
            return msgspec.convert(stored, cls)
        except (UsageError, msgspec.ValidationError) as error:
            raise ValueError(str(error)) from error


_ALWAYS_STORED: Final = (
    *("strategy", "seed", "population", "elites", "lookahead", "trials", "champions"),
)
