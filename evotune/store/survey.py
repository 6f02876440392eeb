"""What reports ask of a whole store, column by column: a million trials need no objects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from evotune.store.sqlite import RunStore
from evotune.trial import Configuration, Value, parse_json


def standings(store: RunStore) -> Iterator[tuple[int, float, float, float, str]]:
    """Number, fitness, its bounds and the device's model, of each trial with a fitness."""
    paths = ("fitness_low", "fitness_high", "resources.device.model")
    found = ", ".join(f"json_extract(outcome, '$.{path}')" for path in paths)
    query = f"SELECT number, fitness, {found} FROM outcomes WHERE fitness IS NOT NULL"
    with store.trusting_facts():
        for number, fitness, low, high, model in store.each_row(f"{query} AND json_valid(outcome)"):
            low_or_fitness = fitness if low is None else float(low)
            high_or_fitness = fitness if high is None else float(high)
            yield number, fitness, low_or_fitness, high_or_fitness, str(model or "")
    # SQLite does not know the NaN that Python writes.
    odd = "SELECT number FROM outcomes WHERE fitness IS NOT NULL AND NOT json_valid(outcome)"
    for trial in store.trials_of([number for (number,) in store.each_row(odd)]):
        fitness = trial.outcome.fitness
        low, high = trial.outcome.fitness_low, trial.outcome.fitness_high
        if fitness is not None:
            bounds = [fitness if bound is None else bound for bound in (low, high)]
            yield trial.number, fitness, bounds[0], bounds[1], trial.outcome.device_model


def records(store: RunStore) -> set[int]:
    """Trials that were the best so far when they were told, or when they finished."""
    query = "SELECT number, fitness FROM outcomes WHERE fitness IS NOT NULL"
    found: set[int] = set()
    for order in ("number", "finished_s"):
        best = -math.inf
        for number, fitness in store.each_row(f"{query} AND duplicate_of IS NULL ORDER BY {order}"):
            if fitness > best:
                best = fitness
                found.add(number)
    return found


def trials_like(store: RunStore, values: Mapping[str, Value]) -> list[int]:
    """Trials of that configuration."""
    query = "SELECT number FROM outcomes WHERE configuration = ? ORDER BY number"
    return [number for (number,) in store.each_row(query, (Configuration(values).key,))]


def failures(store: RunStore) -> Iterator[tuple[str, str]]:
    """Kind and reason of each trial without a fitness, in proposal order."""
    query = "SELECT kind, outcome FROM outcomes WHERE fitness IS NULL ORDER BY number"
    with store.trusting_facts():
        for kind, text in store.each_row(query):
            reason = parse_json(text).get("reason", "")
            if not isinstance(reason, str):
                raise TypeError(f"reason is {reason!r:.40}")
            yield kind, reason
