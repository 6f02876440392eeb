"""Cliffs: a step in time along an ordered parameter that goes with a step in a compiler's figure.

Two candidates that differ in one parameter alone are compared: two trials of the run, or the
champion and a row of its ablation. A cliff is named only if the time rises by more than noise, and
a figure crosses a limit at the same step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evotune.explain.findings import Cliff, Hopeless
from evotune.explain.measured_pairs import TrialTable
from evotune.report.wording import alike_reasons, configuration_text, value_text
from evotune.space.bound import BoundSpace
from evotune.space.search_space import Parameter
from evotune.trial import Configuration, Json, NamedFigures, Outcome, Trial, Value

_LEAST: Final = 0.05  # in ln: a smaller step is no cliff
_SHOWN: Final = 6
_REGISTERS_PER_WARP_UNIT: Final = 256
_WARP: Final = 32


@dataclass(frozen=True, slots=True)
class Step:
    """One candidate after another one that is faster and differs in `parameter` alone.

    - `slower`: ln(time after / time before), positive; `least`: the lower end of its interval.
    - `trials`: their numbers, -1 for a row of an ablation.
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
    """The bounds of a fitness, or the fitness itself if none were measured."""
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
    """Tried values first, those with most trials before the others. Without the space, values that
    were never tried are not named."""
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
