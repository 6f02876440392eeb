"""Measures pairs of choices: which changes to add to an ablation, and the worth of a pair by its
rows.

The strongest pairs that the model finds are measured. A choice often pays only together with the
most valuable one: prefetching gains little while bank conflicts limit the kernel. So up to five
other valuable choices are also measured without the most valuable one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from evotune.explain.findings import Effect, Pair
from evotune.report.wording import value_text
from evotune.runs.ablation import AblationRow, Change
from evotune.space.search_space import Boolean, Categorical, OrderedParameter, Parameter
from evotune.store.facts import AblatedChange, Ablation
from evotune.trial import Configuration, Trial, Value

# A run's trials as columns: parameters with their values, configurations as indices, fitness.
_MOST_VALUES = 64  # of a domain; of a larger one only the values that were tried count


@dataclass(frozen=True, slots=True)
class TrialTable:
    """- `trials`: all trials.
    - `valid`: those with a fitness.
    - `parameters`: those with several values, in the domain or among the tried ones.
    - `places`: the index of each value, with a row for each valid trial and a column for each
      parameter.
    - `fitness`: that of the valid trials.
    """

    trials: tuple[Trial, ...]
    valid: tuple[Trial, ...]
    parameters: tuple[Parameter, ...]
    places: NDArray[np.int64]
    fitness: NDArray[np.float64]

    @classmethod
    def of(cls, trials: Sequence[Trial], known: Sequence[Parameter] = ()) -> TrialTable:
        """The table of these trials. `known`: the space's parameters; without them the values are
        those that were tried, and numbers are assumed to be ordered."""
        valid = tuple(trial for trial in trials if trial.outcome.fitness is not None)
        parameters = tuple(p for p in _tried_parameters(trials, known) if p.cardinality > 1)
        tables = [{_typed(v): i for i, v in enumerate(p.values)} for p in parameters]
        places = np.array(
            [
                [
                    table[_typed(trial.configuration[parameter.name])]
                    for table, parameter in zip(tables, parameters, strict=True)
                ]
                for trial in valid
            ],
            dtype=np.int64,
        ).reshape(len(valid), len(parameters))
        fitness = np.array([trial.outcome.fitness for trial in valid], dtype=np.float64)
        return cls(tuple(trials), valid, parameters, places, fitness)

    def parameter(self, name: str) -> Parameter:
        return next(p for p in self.parameters if p.name == name)

    def column(self, name: str) -> NDArray[np.int64]:
        """The value indices of one parameter, for the valid trials."""
        at = [p.name for p in self.parameters].index(name)
        column: NDArray[np.int64] = self.places[:, at]
        return column

    def varied(self, configuration: Mapping[str, Value]) -> dict[str, Value]:
        """The values of the parameters that vary."""
        return {p.name: configuration[p.name] for p in self.parameters}


def _tried_parameters(trials: Sequence[Trial], known: Sequence[Parameter]) -> list[Parameter]:
    tried: dict[str, dict[tuple[type, Value], Value]] = {}
    for trial in trials:
        for name, value in trial.configuration.items():
            tried.setdefault(name, {})[_typed(value)] = value
    domains = {parameter.name: parameter for parameter in known}
    return [_parameter(name, found.values(), domains.get(name)) for name, found in tried.items()]


def _parameter(name: str, tried: Iterable[Value], domain: Parameter | None) -> Parameter:
    values = {_typed(value): value for value in tried}
    if domain is not None and domain.cardinality <= _MOST_VALUES:
        values = {**{_typed(value): value for value in domain.values}, **values}
    found = list(values.values())
    if all(isinstance(value, bool) for value in found):
        return Boolean(name, sorted(found))
    numbers = [v for v in found if isinstance(v, (int, float)) and not isinstance(v, bool)]
    ordered = len(numbers) == len(found) and (domain is None or domain.ordered)
    return OrderedParameter(name, sorted(numbers)) if ordered else Categorical(name, found)


def _typed(value: Value) -> tuple[type, Value]:
    return type(value), value  # True is no 1


_OF_MODEL: Final = 2  # pairs
_OTHERS: Final = 5  # choices that are measured without the most valuable one
_LEAST_WORTH: Final = 1.05
PAIR: Final = "pair"
"""The `why` of a row of an ablation that changes two parameters."""


class Choices(NamedTuple):
    """Two parameters, each with a value other than the champion's."""

    parameter: str
    source: Value
    other: str
    other_value: Value


def pairs_to_measure(
    pairs: Sequence[Pair],
    effects: Sequence[Effect],
    rows: Sequence[AblationRow] = (),
    is_possible: Callable[[Choices], bool] = lambda choices: True,
) -> Iterator[Choices]:
    """The model's strongest pairs, then the most valuable choice with each of the next most
    valuable ones. Impossible pairs are left out. `rows`: measured single changes, which take
    precedence over the earlier `effects`."""
    modelled = filter(
        is_possible, (Choices(p.parameter, p.source, p.other, p.other_value) for p in pairs)
    )
    known = set()
    for choices in itertools.islice(modelled, _OF_MODEL):
        known.add(frozenset((choices.parameter, choices.other)))
        yield choices
    measured = {_key(each.parameter, each.source): each for each in _worths(rows)}
    assumed = {
        _key(effect.parameter, effect.source): Worth(effect.worth, effect.parameter, effect.source)
        for effect in effects
        if effect.worth is not None and not effect.also and not effect.same_code
    }
    best = _best({**assumed, **measured}.values())
    most = next(iter([*_best(measured.values()), *best]), None)
    if most is not None:
        others = (Choices(*one[1:], *most[1:]) for one in best if one.parameter != most.parameter)
        new = (each for each in others if frozenset((each.parameter, each.other)) not in known)
        yield from itertools.islice(filter(is_possible, new), _OTHERS)


class Worth(NamedTuple):
    """The worth of a choice: time with another value / time with the champion's value, and that
    other value."""

    worth: float
    parameter: str
    source: Value


def _key(parameter: str, value: Value | None) -> tuple[str, str]:
    return parameter, repr(value)  # 1 == True


def _worths(rows: Sequence[AblationRow]) -> Iterator[Worth]:
    """The worths of single changes; 0 if a change failed or changes nothing."""
    for row in rows:
        value = row.change.after
        if value is not None and not row.change.also:
            worth = 1 / row.ratio if row.ratio and not row.same_code else 0.0
            yield Worth(worth, row.change.parameter, value)


def _best(worths: Iterable[Worth]) -> list[Worth]:
    """The most valuable choice of each parameter that is worth something, the greatest first."""
    found: dict[str, Worth] = {}
    for each in sorted(worths, key=lambda each: -each.worth):
        if each.worth >= _LEAST_WORTH:
            found.setdefault(each.parameter, each)
    return list(found.values())


def is_pair(row: AblatedChange) -> bool:
    """Whether a row of an ablation changed both choices of a pair."""
    return bool(row.why == PAIR and row.also)


def pair_changes(champion: Configuration, pairs: Iterable[Choices]) -> list[Change]:
    """The three changes for each pair: of one value, of the other value, and of both."""
    found: dict[Configuration, Change] = {}
    for pair in pairs:
        for one in changes_of_pair(champion, pair):
            found.setdefault(one.configuration, one)
    return list(found.values())


def changes_of_pair(champion: Configuration, pair: Choices) -> list[Change]:
    one, other = {pair.parameter: pair.source}, {pair.other: pair.other_value}
    return [_change(champion, values) for values in (one, other, {**one, **other})]


def _change(champion: Configuration, values: Mapping[str, Value]) -> Change:
    (name, value), *others = values.items()
    configuration = Configuration({**champion, **values})
    return Change(configuration, name, champion[name], value, PAIR, dict(others))


def with_measurements(
    pairs: Sequence[Pair], ablation: Ablation | None, champion: Mapping[str, Value]
) -> tuple[Pair, ...]:
    """The model's pairs, with measured figures if the ablation has all three rows of a pair. Then
    the other measured pairs whose choices surely depend on each other; they replace the model's
    pair of the same parameters."""
    rows = [row for row in (ablation.rows if ablation else ()) if row.parameter and row.ratio]
    known = {(row.parameter, repr(row.after), repr(sorted(row.also.items()))): row for row in rows}
    found = [_measured(pair, known) for pair in pairs]
    told = {_parameters(pair) for pair in found if pair.basis == "paired"}
    for row in filter(is_pair, rows):
        if frozenset((row.parameter, *row.also)) in told:
            continue
        measured = [_measured(pair, known) for pair in _both_ways(row, champion)]
        # The choice that is worth less alone comes first: the other one is why.
        least = min(measured, key=lambda pair: abs(math.log(pair.alone)))
        if least.basis == "paired" and (least.low > 1 or least.high < 1):
            found = [pair for pair in found if _parameters(pair) != _parameters(least)]
            found.append(least)
    return tuple(found)


def _parameters(pair: Pair) -> frozenset[str]:
    return frozenset((pair.parameter, pair.other))


def _both_ways(row: AblatedChange, champion: Mapping[str, Value]) -> Iterator[Pair]:
    """The pair of a row, each choice as the first one, without figures."""
    ((other, other_value),) = row.also.items()
    changed = {row.parameter: row.values[1], other: other_value}
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


def _measured(pair: Pair, known: Mapping[tuple[str, str, str], AblatedChange]) -> Pair:
    def row(name: str, value: Value, also: Mapping[str, Value]) -> AblatedChange | None:
        return known.get((name, repr(value), repr(sorted(also.items()))))

    one = row(pair.parameter, pair.source, {})
    other = row(pair.other, pair.other_value, {})
    both = row(pair.parameter, pair.source, {pair.other: pair.other_value}) or row(
        pair.other, pair.other_value, {pair.parameter: pair.source}
    )
    speeds = [None if item is None else item.speed for item in (one, other, both)]
    known_speeds = [speed for speed in speeds if speed is not None]
    if len(known_speeds) < len(speeds):
        return pair
    first, second, with_both = known_speeds
    together, alone = 1 / first.value, second.value / with_both.value
    spread = sum((math.log(speed.high / speed.low) / 2) ** 2 for speed in known_speeds)
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
