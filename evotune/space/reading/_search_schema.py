"""The keys `search`, `budget`, `stop` and `timeouts` of a space file, as pydantic models."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from evotune.space.reading._fields import Text
from evotune.space.reading._strict_model import SpaceModel


class SearchModel(SpaceModel):
    what = "search"

    strategy: Text | None = None
    """evolution, local, random, exhaustive or nsga2. If not given: evolution, or nsga2 where there
    are several objectives (the others look at the speedup alone)."""
    population: Annotated[int, Field(ge=2, le=100_000)] = 32
    """Trials of a generation."""
    elites: Annotated[int, Field(ge=1, le=100_000)] = 8
    """How many of the best are kept."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Decides every random choice."""
    lookahead: Annotated[int, Field(ge=0, le=10_000)] = 16
    """Proposals that are made ahead of the outcomes; fixed in a run."""


class BudgetModel(SpaceModel):
    what = "budget"

    trials: Annotated[int, Field(ge=1, le=10**9)] = 1000
    """The run ends after so many trials."""
    minutes: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """The run ends after so many minutes of work."""
    compiles: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The run ends after so many compilations."""
    speedup: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """The run ends when a candidate is so many times as fast as the baseline."""


class StopModel(SpaceModel):
    """When to give up before the budget is spent."""

    what = "stop"

    no_improvement: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The run ends when so many trials in a row found nothing better."""


class TimeoutsModel(SpaceModel):
    """Seconds after which a compiler or a whole trial on the device is killed."""

    what = "timeouts"

    compile_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """For one run of the compiler."""
    trial_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    """For a trial on the device, its references left out."""
