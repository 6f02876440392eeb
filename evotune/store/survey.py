"""What reports ask of a whole store, column by column: a million trials need no objects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from evotune.store.sqlite import RunStore
from evotune.trial import Configuration, Outcome, Value, parse_json

# Read from end to end: by the index on fitness a row would be fetched here, the next one there.
_WITH_FITNESS = "FROM outcomes NOT INDEXED WHERE fitness IS NOT NULL"


def standings(store: RunStore) -> Iterator[tuple[int, float, float, float, str]]:
    """Number, fitness, its bounds and the device's model, of each trial with a fitness: best
    first; of equals, the first."""
    paths = ("fitness_low", "fitness_high", "resources.device.model")
    found = (f"iif(json_valid(outcome), json_extract(outcome, '$.{path}'), NULL)" for path in paths)
    # SQLite does not know the NaN that Python writes: such an outcome comes as it is.
    query = (
        f"SELECT number, fitness, {', '.join(found)}, iif(json_valid(outcome), NULL, outcome)"
        f" {_WITH_FITNESS} ORDER BY fitness DESC, number"
    )
    with store.trusting_facts():
        for number, fitness, *known, odd in store.each_row(query):
            low, high, model = known
            if odd is not None:
                outcome = Outcome.from_text(odd)
                low, high = outcome.fitness_low, outcome.fitness_high
                model = outcome.device_model
            low = fitness if low is None else float(low)
            high = fitness if high is None else float(high)
            yield number, fitness, low, high, str(model or "")


def records(store: RunStore) -> set[int]:
    """Trials that were the best so far when they were told, or when they finished."""
    query = f"SELECT number, fitness {_WITH_FITNESS}"
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
