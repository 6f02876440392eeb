"""Pairs of choices, measured: the changes to add to an ablation, and their worth by its rows.

Measured are the pairs that the model finds, and, where it finds fewer than two, pairs of the most
valuable choices: of few trials the model is not sure of any pair.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from evotune.engine.ablation import Change
from evotune.explain.explanation import Effect, Pair
from evotune.report.wording import value_text
from evotune.space.bound import BoundSpace
from evotune.trial import Configuration, Json, Value

_MEASURED: Final = 2
_VALUABLE: Final = 3  # choices of which pairs are made
_LEAST_WORTH: Final = 1.05
PAIR: Final = "pair"
"""Why a row of an ablation changes two parameters."""


class Choices(NamedTuple):
    """Two parameters, and another value of each than the champion's."""

    parameter: str
    source: Value
    other: str
    other_value: Value


def pairs_to_measure(pairs: Sequence[Pair], effects: Sequence[Effect]) -> Iterator[Choices]:
    """The model's pairs, the strongest first, then those of the most valuable choices."""
    for pair in pairs:
        yield Choices(pair.parameter, pair.source, pair.other, pair.other_value)
    known = {frozenset((pair.parameter, pair.other)) for pair in pairs}
    best: dict[str, Effect] = {}
    for effect in sorted(effects, key=lambda effect: -(effect.worth or 0.0)):
        if (effect.worth or 0.0) >= _LEAST_WORTH and not effect.also and not effect.same_code:
            best.setdefault(effect.parameter, effect)
    for one, other in itertools.combinations(list(best.values())[:_VALUABLE], 2):
        if frozenset((one.parameter, other.parameter)) not in known:
            yield Choices(one.parameter, one.source, other.parameter, other.source)


def is_pair(row: Mapping[str, Json]) -> bool:
    """Whether a row of an ablation changed both choices of a pair."""
    return bool(row["why"] == PAIR and row["also"])


def pair_changes(
    space: BoundSpace, champion: Configuration, pairs: Sequence[Choices]
) -> Iterator[Change]:
    """For each of the first pairs: one value changed, the other one changed, and both. A pair of
    which one cannot be is left out."""
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
    pairs: Sequence[Pair], ablation: Mapping[str, Json] | None, champion: Mapping[str, Value]
) -> tuple[Pair, ...]:
    """The model's pairs, with measured figures where the ablation has all three rows of one. Then
    the other measured pairs whose choices surely depend on each other."""
    rows = [row for row in (ablation or {}).get("rows", ()) if row["parameter"] and row["ratio"]]
    known = {
        (row["parameter"], repr(row["after"]), repr(sorted(row["also"].items()))): row
        for row in rows
    }
    modelled = {frozenset((pair.parameter, pair.other)) for pair in pairs}
    found = [_measured(pair, known) for pair in pairs]
    for row in filter(is_pair, rows):
        if frozenset((row["parameter"], *row["also"])) in modelled:
            continue
        measured = [_measured(pair, known) for pair in _both_ways(row, champion)]
        # The choice that is worth less alone comes first: the other one is why.
        least = min(measured, key=lambda pair: abs(math.log(pair.alone)))
        if least.basis == "paired" and (least.low > 1 or least.high < 1):
            found.append(least)
    return tuple(found)


def _both_ways(row: Mapping[str, Json], champion: Mapping[str, Value]) -> Iterator[Pair]:
    """The pair of a row, each choice as the first one, without figures."""
    ((other, other_value),) = row["also"].items()
    changed = {row["parameter"]: row["after"], other: other_value}
    for one, another in itertools.permutations(changed, 2):
        yield Pair(
            parameter=one,
            source=changed[one],
            to=champion[one],
            other=another,
            other_value=changed[another],
            other_to=champion[another],
            alone=1.0,
            together=1.0,
            factor=1.0,
            low=1.0,
            high=1.0,
            text="",
        )


def _measured(pair: Pair, known: Mapping[tuple[str, str, str], Mapping[str, Json]]) -> Pair:
    def row(name: str, value: Value, also: Mapping[str, Value]) -> Mapping[str, Json] | None:
        return known.get((name, repr(value), repr(sorted(also.items()))))

    one = row(pair.parameter, pair.source, {})
    other = row(pair.other, pair.other_value, {})
    both = row(pair.parameter, pair.source, {pair.other: pair.other_value}) or row(
        pair.other, pair.other_value, {pair.parameter: pair.source}
    )
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
