"""Spaces whose outcomes are known, and the engine's ask and tell loop without an engine."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path

from evotune.backends.base.recorded import RecordedSpace, read_recorded_space
from evotune.run_options import SearchSettings
from evotune.search.catalog import create_strategy
from evotune.search.strategy import Strategy
from evotune.space.search_space import (
    Boolean,
    Categorical,
    ExplicitSpace,
    IntegerRange,
    OrderedParameter,
    SearchSpace,
)
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

Evaluate = Callable[[Configuration], Outcome]

RECORDING = Path(__file__).parents[1] / "data" / "synthetic_recording.json.gz"


@cache
def small_space() -> ExplicitSpace:
    """35 configurations of 4 parameters of different types."""
    parameters = (
        OrderedParameter("TILE", (16, 32, 64)),
        IntegerRange("STAGES", 1, 4),
        Boolean("ASYNC"),
        Categorical("SWIZZLE", ("none", "xor", "shift")),
    )
    names = [parameter.name for parameter in parameters]
    everything = itertools.product(*(parameter.values for parameter in parameters))
    configurations = [dict(zip(names, values, strict=True)) for values in everything]
    return ExplicitSpace(
        parameters,
        [
            c
            for c in configurations
            if (c["ASYNC"] or c["STAGES"] == 1) and (c["SWIZZLE"] != "shift" or c["TILE"] == 64)
        ],
    )


@cache
def recording() -> RecordedSpace:
    return read_recorded_space(RECORDING)


def smooth(configuration: Configuration) -> Outcome:
    """Best at TILE 64, STAGES 3, asynchronous, xor; a quarter of the space fails."""
    tile, stages = int(configuration["TILE"]), int(configuration["STAGES"])
    if (tile + stages) % 4 == 2:
        return Outcome(OutcomeKind.COMPILE_ERROR, reason="made to fail")
    fitness = tile / 64 - abs(stages - 3) / 4 + 0.1 * (configuration["SWIZZLE"] == "xor")
    return Outcome(OutcomeKind.OK, fitness=fitness)


def all_fail(configuration: Configuration) -> Outcome:
    return Outcome(OutcomeKind.LAUNCH_ERROR, reason="made to fail")


class Session:
    """Asks and tells as the engine does: proposal n sees the trials before n - lookahead."""

    def __init__(self, strategy: Strategy, evaluate: Evaluate, lookahead: int = 16) -> None:
        self.strategy = strategy
        self.evaluate = evaluate
        self.lookahead = lookahead
        self.proposals: list[Configuration] = []
        self.pending: deque[Configuration] = deque()
        self.exhausted = False

    def run(self, count: int) -> list[Configuration]:
        """Asks until there are `count` proposals, or no more are left; returns all of them."""
        while len(self.proposals) < count and not self.exhausted:
            while len(self.pending) > self.lookahead:
                self._tell_oldest()
            proposal = self.strategy.ask(len(self.proposals), tuple(self.pending))
            if proposal is None:
                self.exhausted = True
            else:
                self.proposals.append(proposal)
                self.pending.append(proposal)
        return self.proposals

    def drain(self) -> None:
        while self.pending:
            self._tell_oldest()

    def _tell_oldest(self) -> None:
        number = len(self.proposals) - len(self.pending)
        configuration = self.pending.popleft()
        self.strategy.tell(Trial(number, configuration, self.evaluate(configuration)))


def session(
    name: str,
    space: SearchSpace,
    evaluate: Evaluate,
    *,
    seed: int = 0,
    population: int = 8,
    elites: int = 3,
    lookahead: int = 16,
) -> Session:
    settings = SearchSettings(seed, population, elites, lookahead)
    return Session(create_strategy(name, space, settings), evaluate, lookahead)
