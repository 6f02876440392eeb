"""Pairs of choices, measured: the changes to add to an ablation, and their worth by its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from evotune.engine.ablation import Change
from evotune.explain.explanation import Pair
from evotune.report.wording import value_text
from evotune.space.bound import BoundSpace
from evotune.trial import Configuration, Json, Value

_MEASURED: Final = 2  # the strongest pairs of a model
PAIR: Final = "pair"
"""Why a row of an ablation changes two parameters."""


def is_pair(row: Mapping[str, Json]) -> bool:
    """Whether a row of an ablation changed both choices of a pair."""
    return bool(row["why"] == PAIR and row["also"])


def pair_changes(
    space: BoundSpace, champion: Configuration, pairs: Sequence[Pair]
) -> Iterator[Change]:
    """For each pair: one value changed, the other one changed, and both. A pair of which one cannot
    be is left out."""
    shown = 0
    for pair in pairs:
        values = {pair.parameter: pair.source, pair.other: pair.other_value}
        changes = [
            _change(champion, {pair.parameter: pair.source}),
            _change(champion, {pair.other: pair.other_value}),
            _change(champion, values),
        ]
        if shown < _MEASURED and all(space.is_valid(one.configuration) for one in changes):
            shown += 1
            yield from changes


def _change(champion: Configuration, values: Mapping[str, Value]) -> Change:
    (name, value), *others = values.items()
    configuration = Configuration({**champion, **values})
    return Change(configuration, name, champion[name], value, PAIR, dict(others))


def with_measurements(
    pairs: Sequence[Pair], ablation: Mapping[str, Json] | None
) -> tuple[Pair, ...]:
    """The pairs, with measured figures where the ablation has all three rows of one."""
    known = {
        (row["parameter"], repr(row["after"]), repr(sorted(row["also"].items()))): row
        for row in (ablation or {}).get("rows", ())
        if row["parameter"] and row["ratio"]
    }
    return tuple(_measured(pair, known) for pair in pairs)


def _measured(pair: Pair, known: Mapping[tuple[str, str, str], Mapping[str, Json]]) -> Pair:
    def row(name: str, value: Value, also: Mapping[str, Value]) -> Mapping[str, Json] | None:
        return known.get((name, repr(value), repr(sorted(also.items()))))

    one = row(pair.parameter, pair.source, {})
    other = row(pair.other, pair.other_value, {})
    both = row(pair.parameter, pair.source, {pair.other: pair.other_value})
    if one is None or other is None or both is None:
        return pair
    together, alone = 1 / one["ratio"], other["ratio"] / both["ratio"]
    spread = sum(
        (math.log(item["ratio_high"] / item["ratio_low"]) / 2) ** 2 for item in (one, other, both)
    )
    factor, width = together / alone, math.exp(math.sqrt(spread))
    return msgspec.structs.replace(
        pair,
        alone=alone,
        together=together,
        factor=factor,
        low=factor / width,
        high=factor * width,
        basis="paired",
        text=pair_text(pair, alone, together),
    )


def pair_text(pair: Pair, alone: float, together: float) -> str:
    return (
        f"{pair.parameter} {value_text(pair.source)} to {value_text(pair.to)} is worth "
        f"{together:.2f}x with {pair.other}={value_text(pair.other_to)}, {alone:.2f}x with "
        f"{pair.other}={value_text(pair.other_value)}"
    )
