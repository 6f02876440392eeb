"""Pairs of choices, measured: the changes to add to an ablation, and their worth by its rows.

Measured are the strongest pairs that the model finds. A choice often pays only where the most
valuable one is made: copies that run ahead bring little while bank conflicts hold the kernel. So
every other valuable choice is measured without the most valuable one as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from evotune.engine.ablation import AblationRow, Change
from evotune.explain.explanation import Effect, Pair
from evotune.report.wording import value_text
from evotune.space.bound import BoundSpace
from evotune.trial import Configuration, Json, Value

_OF_MODEL: Final = 2  # pairs
_OTHERS: Final = 5  # choices that are measured without the most valuable one
_LEAST_WORTH: Final = 1.05
PAIR: Final = "pair"
"""Why a row of an ablation changes two parameters."""


class Choices(NamedTuple):
    """Two parameters, and another value of each than the champion's."""

    parameter: str
    source: Value
    other: str
    other_value: Value


def pairs_to_measure(
    pairs: Sequence[Pair], effects: Sequence[Effect], rows: Sequence[AblationRow] = ()
) -> Iterator[Choices]:
    """The model's strongest pairs, then the most valuable choice with each of the next ones.
    `rows`: measured single changes; they count more than the effects, which were known before."""
    modelled = pairs[:_OF_MODEL]
    for pair in modelled:
        yield Choices(pair.parameter, pair.source, pair.other, pair.other_value)
    known = {frozenset((pair.parameter, pair.other)) for pair in modelled}
    measured = _worths(rows)
    worths = {
        (effect.parameter, effect.source): effect.worth or 0.0
        for effect in effects
        if not effect.also and not effect.same_code
    } | measured
    best = _best(worths)
    most = next(iter(_best(measured) or best), None)
    for one in best:
        if most is None or one[0] == most[0] or len(known) >= _OF_MODEL + _OTHERS:
            continue
        pair_of = frozenset((one[0], most[0]))
        if pair_of not in known:
            known.add(pair_of)
            yield Choices(*one, *most)


def _worths(rows: Sequence[AblationRow]) -> dict[tuple[str, Value], float]:
    """By parameter and other value, of single changes."""
    return {
        (row.change.parameter, row.change.after): 0.0 if row.same_code else 1 / row.ratio
        for row in rows
        if row.ratio and row.change.after is not None and not row.change.also
    }


def _best(worths: Mapping[tuple[str, Value], float]) -> list[tuple[str, Value]]:
    """The most valuable choice of each parameter that is worth something, the greatest first."""
    found: dict[str, tuple[str, Value]] = {}
    for choice, worth in sorted(worths.items(), key=lambda item: -item[1]):
        if worth >= _LEAST_WORTH:
            found.setdefault(choice[0], choice)
    return list(found.values())


def is_pair(row: Mapping[str, Json]) -> bool:
    """Whether a row of an ablation changed both choices of a pair."""
    return bool(row["why"] == PAIR and row["also"])


def pair_changes(
    space: BoundSpace, champion: Configuration, pairs: Iterable[Choices]
) -> list[Change]:
    """For each pair: one value changed, the other one changed, and both. A pair of which one cannot
    be is left out."""
    found: dict[Configuration, Change] = {}
    for pair in pairs:
        values = {pair.parameter: pair.source, pair.other: pair.other_value}
        changes = [
            _change(champion, {pair.parameter: pair.source}),
            _change(champion, {pair.other: pair.other_value}),
            _change(champion, values),
        ]
        if all(space.is_valid(one.configuration) for one in changes):
            for one in changes:
                found.setdefault(one.configuration, one)
    return list(found.values())


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
