"""Queries of a whole store by columns, so that reports on a million trials make no objects."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping

from evotune.store.queries import StoreQueries
from evotune.trial import Configuration, Outcome, Value, parse_json

# NOT INDEXED scans from end to end; the index on fitness would fetch rows from all over the file.
_WITH_FITNESS = "FROM outcomes NOT INDEXED WHERE fitness IS NOT NULL"


def standings(store: StoreQueries) -> list[tuple[int, float, float, float, str]]:
    """The number, fitness, bounds of the fitness and device's model of each trial with a fitness,
    best first; among equals the earlier first."""
    # An outcome of a recorded space has neither bounds nor a device. The rows are sorted here,
    # since SQLite sorts long texts slowly.
    query = (
        "SELECT number, fitness,"
        " iif(instr(outcome, '\"fitness_') OR instr(outcome, '\"model\"'), outcome, NULL)"
        f" {_WITH_FITNESS} ORDER BY number"
    )
    found = []
    with store.trusting_facts():
        for number, fitness, text in store.each_row(query):
            if text is None:
                found.append((number, fitness, fitness, fitness, ""))
                continue
            outcome = Outcome.from_text(text)
            low = fitness if outcome.fitness_low is None else outcome.fitness_low
            high = fitness if outcome.fitness_high is None else outcome.fitness_high
            found.append((number, fitness, low, high, outcome.device_model))
    found.sort(key=operator.itemgetter(1), reverse=True)  # the sort leaves equals in their order
    return found


def records(store: StoreQueries) -> set[int]:
    """The trials that were the best so far when they were told, or when they finished."""
    query = f"SELECT number, fitness {_WITH_FITNESS}"
    found: set[int] = set()
    for order in ("number", "finished_s"):
        best = -math.inf
        for number, fitness in store.each_row(f"{query} AND duplicate_of IS NULL ORDER BY {order}"):
            if fitness > best:
                best = fitness
                found.add(number)
    return found


def trials_like(store: StoreQueries, values: Mapping[str, Value]) -> list[int]:
    """The numbers of the trials of this configuration."""
    query = "SELECT number FROM outcomes WHERE configuration = ? ORDER BY number"
    return [number for (number,) in store.each_row(query, (Configuration(values).key,))]


def failures(store: StoreQueries) -> Iterator[tuple[str, str]]:
    """The kind and the reason of each trial without a fitness, in proposal order."""
    query = "SELECT kind, outcome FROM outcomes WHERE fitness IS NULL ORDER BY number"
    with store.trusting_facts():
        for kind, text in store.each_row(query):
            reason = parse_json(text).get("reason", "")
            if not isinstance(reason, str):
                raise TypeError(f"reason is {reason!r:.40}")
            yield kind, reason
