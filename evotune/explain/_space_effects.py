"""Effects over the whole space, from a run's trials: importance, mean worth of values, pairs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from evotune.explain._measured_pairs import pair_text
from evotune.explain._ped_anova import importances
from evotune.explain._trial_table import TrialTable
from evotune.explain.explanation import Importance, Marginal, Pair
from evotune.search.trial_model import Difference, TrialModel
from evotune.space.parameters import Parameter
from evotune.trial import Configuration, Value

_BACKGROUND: Final = 48  # configurations over which a value's worth is averaged
_NEAR: Final = 16  # of them, the best ones, for pairs
_PAIRED: Final = 7  # the most important parameters, whose pairs are looked at
_OTHERS: Final = 3  # other values of each
_SHOWN_PAIRS: Final = 5
_LEAST_FACTOR: Final = 0.03  # in ln: a smaller interaction is not worth a line


def importance_of(
    table: TrialTable, marginals: Mapping[str, Sequence[Difference]]
) -> tuple[Importance, ...]:
    """By PED-ANOVA and, where there is a model, by the spread of its marginals. Most important
    first."""
    parameters = table.parameters
    best = importances(
        table.places,
        table.fitness,
        [p.cardinality for p in parameters],
        [p.ordered for p in parameters],
    )
    spreads = {name: _spread(found) for name, found in marginals.items()}
    total = sum(spreads.values())
    found = [
        Importance(
            parameter=parameter.name,
            best=share,
            model=(spreads.get(parameter.name, 0.0) / total if total > 0 else 0.0)
            if marginals
            else None,
        )
        for parameter, share in zip(parameters, best, strict=True)
    ]
    return tuple(sorted(found, key=lambda i: -(i.best + (i.best if i.model is None else i.model))))


def _spread(found: Sequence[Difference]) -> float:
    """The variance between values beyond that of the predictions themselves."""
    if len(found) < 2:
        return 0.0
    means = np.array([one.mean for one in found])
    return max(0.0, float(means.var()) - float(np.mean([one.deviation**2 for one in found])))


def marginal_differences(
    table: TrialTable, model: TrialModel
) -> dict[str, tuple[list[Value], list[Difference]]]:
    """For each parameter the values with valid trials, and the mean fitness with each, less the
    mean over all of these values."""
    background = _background(table)
    return {
        parameter.name: _marginal(table, parameter, model, background)
        for parameter in table.parameters
    }


def marginals_of(
    table: TrialTable, found: Mapping[str, tuple[list[Value], list[Difference]]]
) -> tuple[Marginal, ...]:
    """The differences that `marginal_differences` found, as ratios: exp(difference) with its 95%
    interval, and the number of valid trials with the value."""
    made = []
    for name, (values, differences) in found.items():
        counts = Counter(trial.configuration[name] for trial in table.valid)
        made += [
            Marginal(
                parameter=name,
                value=value,
                worth=math.exp(difference.mean),
                low=math.exp(difference.low),
                high=math.exp(difference.high),
                trials=counts[value],
            )
            for value, difference in zip(values, differences, strict=True)
        ]
    return tuple(made)


def _background(table: TrialTable) -> list[dict[str, Value]]:
    """Valid configurations of every quality, as the trials have them."""
    ranked = np.argsort(-table.fitness, kind="stable")
    chosen = np.unique(np.linspace(0, len(ranked) - 1, min(_BACKGROUND, len(ranked))).astype(int))
    return [table.varied(table.valid[int(ranked[at])].configuration) for at in chosen]


def _marginal(
    table: TrialTable,
    parameter: Parameter,
    model: TrialModel,
    background: Sequence[Mapping[str, Value]],
) -> tuple[list[Value], list[Difference]]:
    seen = np.bincount(table.column(parameter.name), minlength=parameter.cardinality)
    values = [value for value, count in zip(parameter.values, seen, strict=True) if count]
    if len(values) < 2:
        return values, [Difference(0.0, 0.0) for _ in values]
    pool = [{**one, parameter.name: value} for value in values for one in background]
    own = np.repeat(np.eye(len(values)), len(background), axis=1) / len(background)
    return values, model.contrasts(pool, own - own.mean(axis=0))


# --- Pairs ----------------------------------------------------------------------------------------


def pairs_of(
    table: TrialTable,
    model: TrialModel,
    champion: Configuration,
    important: Sequence[Importance],
) -> tuple[Pair, ...]:
    """Pairs of choices of the champion whose worth depends on each other, by the model: the mean
    over the best configurations, and only where the 95% interval leaves out 1. Strongest first."""
    names = [item.parameter for item in important[:_PAIRED]]
    ranked = np.argsort(-table.fitness, kind="stable")[:_NEAR]
    near = [table.varied(table.valid[int(at)].configuration) for at in ranked]
    found = []
    for name, other in itertools.combinations(names, 2):
        best: Pair | None = None
        for pair in _pairs(table, model, champion, near=near, name=name, other=other):
            if best is None or abs(math.log(pair.factor)) > abs(math.log(best.factor)):
                best = pair
        if best is not None:
            found.append(best)
    found.sort(key=lambda pair: -abs(math.log(pair.factor)))
    return tuple(found[:_SHOWN_PAIRS])


def _pairs(
    table: TrialTable,
    model: TrialModel,
    champion: Configuration,
    *,
    near: Sequence[Mapping[str, Value]],
    name: str,
    other: str,
) -> list[Pair]:
    together = _occurring(table, name, other)
    mine, theirs = champion[name], champion[other]
    combinations = [
        (one, another)
        for one in _usual(table, name, mine)
        for another in _usual(table, other, theirs)
        if {(one, another), (mine, another), (one, theirs)} <= together
    ]
    found = []
    for one, another in combinations:
        cells = [(mine, theirs), (one, theirs), (mine, another), (one, another)]
        pool = [{**base, name: a, other: b} for a, b in cells for base in near]
        share = np.full(len(near), 1 / len(near))
        signs = np.array(
            [[1, -1, -1, 1], [1, -1, 0, 0], [0, 0, 1, -1], [1, 0, -1, 0], [0, 1, 0, -1]]
        )
        weights = np.concatenate([np.outer(signs[:, at], share) for at in range(4)], axis=1)
        factor, *worths = model.contrasts(pool, weights)
        if factor.is_sure and abs(factor.mean) >= _LEAST_FACTOR:
            first, second = (name, one, mine), (other, another, theirs)
            # The choice that is worth nothing alone comes first: the other one is why.
            if abs(worths[3].mean) < abs(worths[1].mean):
                first, second, worths = second, first, worths[2:]
            found.append(_pair(first, second, factor, worths[0], worths[1]))
    return found


def _occurring(table: TrialTable, name: str, other: str) -> set[tuple[Value, Value]]:
    """The pairs of values that a valid trial has."""
    columns = np.stack([table.column(name), table.column(other)], axis=1)
    values = [table.parameter(one).values for one in (name, other)]
    return {(values[0][int(a)], values[1][int(b)]) for a, b in np.unique(columns, axis=0)}


def _usual(table: TrialTable, name: str, own: Value) -> list[Value]:
    """The other values that most valid trials have."""
    values = table.parameter(name).values
    counts = np.bincount(table.column(name), minlength=len(values))
    ranked = [values[int(at)] for at in np.argsort(-counts, kind="stable") if counts[at]]
    return [value for value in ranked if value != own][:_OTHERS]


def _pair(
    first: tuple[str, Value, Value],
    second: tuple[str, Value, Value],
    factor: Difference,
    with_theirs: Difference,
    with_another: Difference,
) -> Pair:
    """`first`, `second`: a parameter, another value, and the champion's."""
    (name, one, mine), (other, another, theirs) = first, second
    alone, together = math.exp(with_another.mean), math.exp(with_theirs.mean)
    found = Pair(
        parameter=name,
        source=one,
        to=mine,
        other=other,
        other_value=another,
        other_to=theirs,
        alone=alone,
        together=together,
        factor=math.exp(factor.mean),
        low=math.exp(factor.low),
        high=math.exp(factor.high),
        text="",
    )
    return msgspec.structs.replace(found, text=pair_text(found, alone, together))
