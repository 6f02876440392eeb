"""Effects over the whole space, from a run's trials: importance, worth of values, pairs, cliffs.

A cliff is a step in time along an ordered parameter that coincides with a step in a compiler's
figure. It is found by comparing two candidates that differ only in one parameter: two trials of the
run, or the champion and a row of its ablation. A cliff is reported only if the time rises by more
than noise and a figure crosses a limit at the same step.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from evotune.explain.findings import Cliff, Effect, Hopeless, Importance, Marginal, Pair
from evotune.explain.measured_pairs import TrialTable, is_pair, pair_text
from evotune.explain.predicting import Predictor
from evotune.report.wording import alike_reasons, configuration_text, value_text
from evotune.runs.ablation import SMALLEST
from evotune.search.gaussian_process import Difference, TrialModel
from evotune.space.bound import BoundSpace
from evotune.space.search_space import Parameter
from evotune.store.facts import Ablation
from evotune.trial import Configuration, Json, NamedFigures, Outcome, Trial, Value

_BACKGROUND: Final = 48  # configurations over which a value's worth is averaged
_NEAR: Final = 16  # of them, the best ones, for pairs
_PAIRED: Final = 7  # the most important parameters, whose pairs are looked at
_OTHERS: Final = 3  # other values of each
_SHOWN_PAIRS: Final = 5
_LEAST_FACTOR: Final = 0.03  # in ln: a smaller interaction is not worth a line
_LEAST: Final = 0.05  # in ln: a smaller step is no cliff
_SHOWN: Final = 6
_REGISTERS_PER_WARP_UNIT: Final = 256
_WARP: Final = 32


def importance_of(
    table: TrialTable, marginals: Mapping[str, Sequence[Difference]]
) -> tuple[Importance, ...]:
    """The importance of each parameter by PED-ANOVA and, if there is a model, by the spread of its
    marginals. Most important first."""
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
    """For each parameter, its values that have valid trials, and the mean fitness with each value
    minus the mean over all of these values."""
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
    over the best configurations, and only if the 95% interval excludes 1. Strongest first."""
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


# PED-ANOVA: which parameters decide whether a trial is among the best.
#
# Source: Watanabe, Bansal, Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
# Arbitrary Subspaces" (IJCAI 2023, arXiv 2304.10255). A parameter is important if the distribution
# of its values among the best trials differs from the one among all trials. The difference is the
# Pearson divergence of two one-dimensional kernel density estimates. No model of the fitness is
# fitted, and since both densities are of the trials, it does not matter where the search has looked
# most.
_BEST: Final = 0.1  # the share of trials that count as the best
_LEAST_BEST: Final = 8  # of them, as far as they are no more than half of the trials
_LEAST_BANDWIDTH: Final = 0.5  # in steps of an ordered parameter
_PRIOR: Final = 1.0  # the weight of the uniform distribution, in trials

_Floats = NDArray[np.float64]


def importances(
    places: NDArray[np.int64],
    fitness: _Floats,
    cardinalities: Sequence[int],
    ordered: Sequence[bool],
) -> list[float]:
    """Each parameter's share of the importance; they sum to 1, or are all 0 if nothing differs.

    `places` is trials x parameters, the index of each value; `fitness` is higher for better trials.
    """
    count = len(fitness)
    chosen = max(math.ceil(_BEST * count), min(_LEAST_BEST, count // 2))
    best = np.argsort(-fitness, kind="stable")[:chosen]
    found = [
        _divergence(
            _density(places[best, at], size, smooth=is_ordered),
            _density(places[:, at], size, smooth=is_ordered),
        )
        for at, (size, is_ordered) in enumerate(zip(cardinalities, ordered, strict=True))
    ]
    total = sum(found)
    return [value / total if total > 0 else 0.0 for value in found]


def _divergence(target: _Floats, base: _Floats) -> float:
    """The Pearson divergence: the mean of (target / base - 1)^2 under `base`."""
    return float((base * (target / base - 1) ** 2).sum())


def _density(places: NDArray[np.int64], size: int, *, smooth: bool) -> _Floats:
    """The density over `size` values, mixed with the uniform one. `smooth`: by a normal kernel of
    Scott's bandwidth, cut off at the ends of the axis."""
    counts = np.bincount(places, minlength=size).astype(np.float64)
    if smooth and size > 2 and len(places):
        bandwidth = max(_LEAST_BANDWIDTH, 1.06 * float(places.std()) * len(places) ** -0.2)
        axis = np.arange(size)
        kernels = np.exp(-0.5 * ((axis[:, None] - axis[None, :]) / bandwidth) ** 2)
        kernels /= kernels.sum(axis=1, keepdims=True)
        counts = counts @ kernels
    density: _Floats = (counts + _PRIOR / size) / (counts.sum() + _PRIOR)
    return density


_MOST: Final = 700.0  # in ln; of more there is no float
_UNORDERED: Final = 2  # predicted alternatives of a parameter without an order


def effects_of(
    champion: Trial,
    ablation: Ablation | None,
    table: TrialTable,
    predictor: Predictor | None,
    valid: Sequence[Configuration] | None = None,
) -> tuple[Effect, ...]:
    """One effect for each parameter and each of its other values. A paired measurement takes
    precedence over trials of the run, and these over the model. `valid`: the configurations that
    may be predicted; None if the space is unknown. The largest effect comes first, failures last.
    """
    found: dict[tuple[str, str], Effect] = {}
    for effect in (*_paired(ablation), *_from_trials(champion, table)):
        found.setdefault((effect.parameter, repr(effect.source)), effect)
    if predictor is not None:
        for effect in _predicted(champion, table, predictor, valid):
            found.setdefault((effect.parameter, repr(effect.source)), effect)
    return tuple(sorted(found.values(), key=_size))


def _size(effect: Effect) -> tuple[bool, float]:
    return (effect.worth is None, -abs(math.log(effect.worth)) if effect.worth else 0.0)


def _paired(ablation: Ablation | None) -> Iterator[Effect]:
    for row in ablation.rows if ablation else ():
        if not row.parameter or is_pair(row):
            continue
        yield Effect(
            parameter=row.parameter,
            source=row.values[1],
            to=row.values[0],
            worth=1 / row.speed.value if row.speed else None,
            low=1 / row.speed.high if row.speed else None,
            high=1 / row.speed.low if row.speed else None,
            basis="paired",
            outcome=row.outcome,
            reason=row.reason,
            also=row.also,
            same_code=row.same_code,
        )


def ablation_steps(ablation: Ablation | None) -> Iterator[Step]:
    """The rows that changed a single parameter and have the compiler's figures, as steps. A change
    to the smallest value is no step, because the cliff may lie anywhere in between."""
    rows = list(ablation.rows if ablation else ())
    if not rows or not rows[0].resources:
        return
    own = rows[0].resources
    for row in rows[1:]:
        speed = row.speed
        if speed is None or row.also or not row.resources:
            continue
        if row.why == SMALLEST:
            continue
        slower, other = -math.log(speed.value), row.resources
        before, after = row.values
        if slower >= 0:
            least = -math.log(speed.high)
            yield Step(row.parameter, before, after, slower, least, own, other, (-1, -1))
        else:
            least = math.log(speed.low)
            yield Step(row.parameter, after, before, -slower, least, other, own, (-1, -1))


def _from_trials(champion: Trial, table: TrialTable) -> Iterator[Effect]:
    """Trials that differ from the champion in one parameter. Each was timed in alternation with the
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


@dataclass(frozen=True, slots=True)
class Step:
    """A step from one candidate to a slower one that differs only in `parameter`.
    - `slower`: ln(time after / time before), positive.
    - `least`: the lower end of its interval.
    - `trials`: the numbers of the two trials; -1 for a row of an ablation.
    """

    parameter: str
    before: Value
    after: Value
    slower: float
    least: float
    first: Mapping[str, Json]
    second: Mapping[str, Json]
    trials: tuple[int, int]


def cliffs_of(
    table: TrialTable, more: Iterable[Step], device: Mapping[str, Value]
) -> tuple[Cliff, ...]:
    """The cliffs among the run's trials and in `more` steps: the steepest of each parameter and
    figure. `device` has the attributes of the device's profile."""
    found: dict[tuple[str, str], Cliff] = {}
    for step in (*_steps(table), *more):
        if step.slower < _LEAST or step.least <= 0:
            continue
        for cliff in _explained(step, device):
            key = (cliff.parameter, cliff.figure)
            if key not in found or cliff.slowdown > found[key].slowdown:
                found[key] = cliff
    return tuple(sorted(found.values(), key=lambda cliff: -cliff.slowdown)[:_SHOWN])


def _steps(table: TrialTable) -> Iterator[Step]:
    """Neighbours along each ordered parameter, among trials that agree in all else. Trials that
    agree have equal sums of random numbers, one for each value; these are sorted."""
    places = table.places.astype(np.uint64)
    rng = np.random.default_rng(0)
    drawn: NDArray[np.uint64] = rng.integers(1, 1 << 63, size=(places.shape[1],), dtype=np.uint64)
    sums = (places * drawn).sum(axis=1, dtype=np.uint64)
    for at, parameter in enumerate(table.parameters):
        if not parameter.ordered:
            continue
        column = places[:, at]
        rest = sums - column * drawn[at]
        order = np.lexsort((column, rest))
        first, second = order[:-1], order[1:]
        alike = (rest[first] == rest[second]) & (column[first] != column[second])
        for one, other in zip(first[alike], second[alike], strict=True):
            if (places[one] != places[other]).sum() == 1:
                yield _step(table, parameter, int(one), int(other))


def _step(table: TrialTable, parameter: Parameter, first: int, second: int) -> Step:
    one, other = table.valid[first], table.valid[second]
    if table.fitness[first] < table.fitness[second]:
        one, other = other, one
    low, high = interval_of(one.outcome)[0], interval_of(other.outcome)[1]
    return Step(
        parameter.name,
        one.configuration[parameter.name],
        other.configuration[parameter.name],
        abs(float(table.fitness[first] - table.fitness[second])),
        low - high,
        one.outcome.resources,
        other.outcome.resources,
        (one.number, other.number),
    )


def interval_of(outcome: Outcome) -> tuple[float, float]:
    """The bounds of a fitness, or the fitness itself if no bounds were measured."""
    assert outcome.fitness is not None
    low, high = outcome.fitness_low, outcome.fitness_high
    return (outcome.fitness if low is None else low, outcome.fitness if high is None else high)


def _explained(step: Step, device: Mapping[str, Value]) -> Iterator[Cliff]:
    one, other = (_figures(resources) for resources in (step.first, step.second))
    spills = one.get("spill_bytes", 0.0), other.get("spill_bytes", 0.0)
    if spills[1] > spills[0]:
        yield _cliff(step, "spill_bytes", spills, f"spills {spills[0]:g} to {spills[1]:g} bytes")
    blocks = one.get("blocks_resident", 0.0), other.get("blocks_resident", 0.0)
    if 0 < blocks[1] < blocks[0]:
        figure, crossing = _crossing(other, int(blocks[0]), device)
        named = blocks if figure == "blocks_resident" else (one[figure], other[figure])
        text = f"{blocks[0]:g} to {blocks[1]:g} blocks a multiprocessor"
        yield _cliff(step, figure, named, text + (f": {crossing}" if crossing else ""))


def _figures(resources: NamedFigures) -> dict[str, float]:
    return {name: float(v) for name, v in resources.items() if isinstance(v, (int, float))}


def _crossing(
    after: Mapping[str, float], blocks: int, device: Mapping[str, Value]
) -> tuple[str, str]:
    """The figure because of which `blocks` blocks no longer fit, and the number that crosses."""
    room = _number(device, "shared_bytes_per_multiprocessor")
    own = after.get("shared_bytes_total", 0.0) + _number(device, "reserved_shared_bytes_per_block")
    if room and blocks * own > room:
        return (
            "shared_bytes_total",
            f"{blocks} blocks of {own:,.0f} bytes of shared memory are {blocks * own:,.0f} bytes, "
            f"a multiprocessor has {room:,.0f}",
        )
    registers = _number(device, "registers_per_multiprocessor")
    warps = _warps(after, device)
    if registers and warps and "registers" in after:
        unit = _REGISTERS_PER_WARP_UNIT
        per_warp = math.ceil(after["registers"] * _WARP / unit) * unit
        wanted = blocks * warps * per_warp
        if wanted > registers:
            return (
                "registers",
                f"{blocks} blocks of {warps} warps with {after['registers']:g} registers a thread "
                f"are {wanted:,.0f} registers, a multiprocessor has {registers:,.0f}",
            )
    return "blocks_resident", ""


def _warps(figures: Mapping[str, float], device: Mapping[str, Value]) -> int:
    """The warps of a block, from its occupancy; 0 if that is not known."""
    blocks, threads = figures.get("blocks_resident"), _number(device, "threads_per_multiprocessor")
    if not blocks or not threads:
        return 0
    return round(figures.get("occupancy", 0.0) * threads / _WARP / blocks)


def _number(device: Mapping[str, Value], name: str) -> float:
    found = device.get(name, 0)
    return float(found) if isinstance(found, (int, float)) else 0.0


def _cliff(step: Step, figure: str, values: Sequence[float], what: str) -> Cliff:
    slowdown = math.exp(step.slower)
    return Cliff(
        parameter=step.parameter,
        before=step.before,
        after=step.after,
        slowdown=slowdown,
        figure=figure,
        figure_before=values[0],
        figure_after=values[1],
        trials=step.trials,
        text=f"{step.parameter} {value_text(step.before)} to {value_text(step.after)}: "
        f"{slowdown:.2f} times as long, {what}",
    )


# Values of a parameter that never gave a valid trial: which constraint or which outcome stood
# against them.
_MOST_BASES: Final = 256  # valid configurations in which a value is put


def hopeless_values(table: TrialTable, space: BoundSpace | None) -> tuple[Hopeless, ...]:
    """The values without a valid trial; those with the most trials come first. Values that were
    never tried are included only if `space` is given.
    """
    found: list[Hopeless] = []
    for parameter in table.parameters:
        by_value: dict[tuple[type, Value], list[Trial]] = {}
        for trial in table.trials:
            value = trial.configuration[parameter.name]
            by_value.setdefault((type(value), value), []).append(trial)
        for value in parameter.values:
            with_it = by_value.get((type(value), value), [])
            item = _hopeless(table, space, parameter.name, value, with_it)
            found += [item] if item is not None else []
    return tuple(sorted(found, key=lambda item: -item.trials))


def _hopeless(
    table: TrialTable, space: BoundSpace | None, name: str, value: Value, with_it: Sequence[Trial]
) -> Hopeless | None:
    if any(trial.outcome.ok or trial.outcome.undecided for trial in with_it):
        return None
    if with_it:
        text = _outcomes_text(with_it)
    elif space is not None:
        text = _constraints_text(table, space, name, value)
    else:
        return None
    if not text:
        return None
    said = configuration_text({name: value})
    return Hopeless(parameter=name, value=value, trials=len(with_it), text=f"{said}: {text}")


def _outcomes_text(trials: Sequence[Trial]) -> str:
    """`14 trials, all resource_limit: 262144 bytes of shared memory, but …`."""
    kinds = Counter(trial.outcome.kind.value for trial in trials)
    kind, most = kinds.most_common(1)[0]
    reason = alike_reasons((t.outcome.kind.value, t.outcome.reason) for t in trials)[0]
    count = f"{len(trials)} trial" + ("s" if len(trials) > 1 else "")
    if len(kinds) == 1:
        share = f"all {kind}" if len(trials) > 1 else kind
    else:
        share = ", ".join(f"{n} {k}" for k, n in kinds.most_common())
        share += "; most often" if most == reason.trials else "; for example"
    return f"{count}, {share}" + (f": {reason.example}" if reason.example else "")


def _constraints_text(table: TrialTable, space: BoundSpace, name: str, value: Value) -> str:
    """The constraints that the value breaks in each configuration of the run; "" if the parameter
    is inactive, or if some would be valid and the search did not reach them."""
    bases = list(dict.fromkeys(trial.configuration for trial in table.trials))
    active = [base for base in bases[:_MOST_BASES] if name in space.active(base)]
    broken: Counter[str] = Counter()
    for base in active:
        violated = space.violations(Configuration({**base, name: value}))
        if not violated:
            return ""
        broken.update(violated)
    worst = ", ".join(f"`{text}`" for text, _ in broken.most_common(2))
    where = "the one tried configuration"
    if len(active) > 1:
        where = f"each of {len(active)} tried configurations"
    return f"put into {where} it breaks a constraint, {worst}" if worst else ""
