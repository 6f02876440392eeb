"""The worth of each value of one candidate: measured in turn, from trials, or predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from evotune.explain._cliffs import Step, interval_of
from evotune.explain._measured_pairs import is_pair
from evotune.explain._trial_table import TrialTable
from evotune.explain.explanation import Effect
from evotune.explain.predicting import Predictor
from evotune.runs.ablation import SMALLEST
from evotune.space.parameters import Parameter
from evotune.trial import Configuration, Json, Trial, Value

_MOST: Final = 700.0  # in ln; of more there is no float
_UNORDERED: Final = 2  # predicted alternatives of a parameter without an order


def effects_of(
    champion: Trial,
    ablation: Mapping[str, Json] | None,
    table: TrialTable,
    predictor: Predictor | None,
    valid: Sequence[Configuration] | None = None,
) -> tuple[Effect, ...]:
    """One effect for each parameter and other value. A paired measurement counts before trials of
    the run, and these before the model. `valid`: the configurations that may be predicted; None
    where the space is not known. The largest effect first; failures come last."""
    found: dict[tuple[str, str], Effect] = {}
    for effect in (*_paired(ablation), *_from_trials(champion, table)):
        found.setdefault((effect.parameter, repr(effect.source)), effect)
    if predictor is not None:
        for effect in _predicted(champion, table, predictor, valid):
            found.setdefault((effect.parameter, repr(effect.source)), effect)
    return tuple(sorted(found.values(), key=_size))


def _size(effect: Effect) -> tuple[bool, float]:
    return (effect.worth is None, -abs(math.log(effect.worth)) if effect.worth else 0.0)


def _paired(ablation: Mapping[str, Json] | None) -> Iterator[Effect]:
    for row in (ablation or {}).get("rows", ()):
        if not row["parameter"] or is_pair(row):
            continue
        known = row["ratio"] is not None
        yield Effect(
            parameter=row["parameter"],
            source=row["after"],
            to=row["before"],
            worth=1 / row["ratio"] if known else None,
            low=1 / row["ratio_high"] if known else None,
            high=1 / row["ratio_low"] if known else None,
            basis="paired",
            outcome=row["outcome"],
            reason=row["reason"],
            also=row.get("also") or {},
            same_code=bool(row.get("same_code")),
        )


def ablation_steps(ablation: Mapping[str, Json] | None) -> Iterator[Step]:
    """The rows that changed one parameter alone, whose compilers' figures are kept, as steps. A
    change to the smallest value is no step: the cliff may lie anywhere on the way."""
    rows = list((ablation or {}).get("rows", ()))
    if not rows or not rows[0].get("resources"):
        return
    own = rows[0]["resources"]
    for row in rows[1:]:
        if row["ratio"] is None or row.get("also") or not row.get("resources"):
            continue
        if row.get("why") == SMALLEST:
            continue
        slower, other = -math.log(row["ratio"]), row["resources"]
        change = (row["before"], row["after"])
        if slower >= 0:
            least = -math.log(row["ratio_high"])
            yield Step(row["parameter"], *change, slower, least, own, other, (-1, -1))
        else:
            least = math.log(row["ratio_low"])
            yield Step(row["parameter"], *change[::-1], -slower, least, other, own, (-1, -1))


def _from_trials(champion: Trial, table: TrialTable) -> Iterator[Effect]:
    """Trials that differ from the champion in one parameter. Each was timed in turn with the
    baseline, so the quotient of two speedups compares them."""
    mine = champion.outcome
    for trial in table.trials:
        changed = [p for p, v in trial.configuration.items() if champion.configuration[p] != v]
        if len(changed) != 1:
            continue
        name = changed[0]
        worth = low = high = None
        if trial.outcome.ok and mine.fitness is not None and trial.outcome.fitness is not None:
            own, other = interval_of(mine), interval_of(trial.outcome)
            worth = math.exp(mine.fitness - trial.outcome.fitness)
            low, high = math.exp(own[0] - other[1]), math.exp(min(own[1] - other[0], _MOST))
        yield Effect(
            parameter=name,
            source=trial.configuration[name],
            to=champion.configuration[name],
            worth=worth,
            low=low,
            high=high,
            basis="trials",
            outcome=trial.outcome.kind.value,
            reason=trial.outcome.reason,
            same_code=bool(mine.binary) and mine.binary == trial.outcome.binary,
        )


def _predicted(
    champion: Trial,
    table: TrialTable,
    predictor: Predictor,
    valid: Sequence[Configuration] | None,
) -> Iterator[Effect]:
    if valid is None:
        changed = [
            {**champion.configuration, p.name: value}
            for p in table.parameters
            for value in _alternatives(p, champion.configuration[p.name])
        ]
    else:
        changed = [dict(configuration) for configuration in valid]
    own = champion.configuration
    predicted = predictor.changes(own, changed)
    for one, difference in zip(changed, predicted, strict=True):
        names = [name for name, value in one.items() if value != own[name]]
        if difference is None or not names:
            continue
        yield Effect(
            parameter=names[0],
            source=one[names[0]],
            to=own[names[0]],
            worth=math.exp(-difference.mean),
            low=math.exp(-difference.high),
            high=math.exp(-difference.low),
            basis="model",
            also={name: one[name] for name in names[1:]},
        )


def _alternatives(parameter: Parameter, value: Value) -> Sequence[Value]:
    near = parameter.adjacent(value)
    return near if parameter.ordered else near[:_UNORDERED]
