"""Suggestions: at most five, each derived from the limiter by a rule that it states.

An estimate is the time now / the time then. Those of techniques are bounds: the gain if the named
part of the time goes away. Those of configurations come from the search's model, with an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evotune.explain._limiter import CONFLICTS, GRID, LATENCY, SPILLS, Case, stalls_of
from evotune.explain._roofline import DRAM, FMA, ISSUE, L2, LAUNCH, MUFU, SHARED, TENSOR
from evotune.explain._stall_reasons import STALLS
from evotune.explain._trial_table import TrialTable
from evotune.explain.explanation import Effect, Limiter, Suggestion
from evotune.explain.predicting import LaunchFigures, Predictor
from evotune.report.wording import configuration_text, value_text
from evotune.search.trial_model import Difference
from evotune.space.bound import BoundSpace
from evotune.space.parameters import OrderedParameter
from evotune.trial import Configuration, Trial, Value

_MOST: Final = 5
_CONFIGURATIONS: Final = 3
_LEAST: Final = 1.01  # a smaller estimate is not worth a line
_LEAST_CERTAINTY: Final = 0.5  # of a prediction, in its deviations
_ELITES: Final = 5  # whose neighbours are candidates
_FEWER_READS: Final = "read each tile once for two blocks (clusters, larger tiles)"
_SMALLER_TILES: Final = "work on tiles that stay in a core's own cache, or make fewer passes"
_POLYNOMIAL: Final = 0.75
"""FMA time of an exponential by a polynomial of degree 5, in MUFU times: six instructions at eight
times MUFU's rate."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All that suggestions are made of. `space` and `launch_figures` are None where the space was
    not read."""

    case: Case
    limiter: Limiter
    effects: Sequence[Effect]
    table: TrialTable
    predictor: Predictor | None
    champion: Trial
    space: BoundSpace | None
    launch_figures: Callable[[Configuration], LaunchFigures] | None


def suggestions_of(sources: Sources) -> tuple[Suggestion, ...]:
    """The greatest estimates first."""
    found = [
        *_techniques(sources),
        *_configurations(sources),
        *_outside(sources),
        *_constraints(sources),
    ]
    worth = [item for item in found if item.estimate >= _LEAST]
    return tuple(sorted(worth, key=lambda item: -item.estimate)[:_MOST])


# --- Techniques: what would go away, by the limiter -----------------------------------------------


def _techniques(sources: Sources) -> Iterator[Suggestion]:
    limiter, case = sources.limiter, sources.case
    name, share = limiter.name, limiter.share or 0.0
    if name == SPILLS:
        yield _technique(
            "keep fewer values in registers, or allow more of them by looser launch bounds",
            f"spills are {share:.0%} of the instructions in the innermost loops: without them",
            1 / (1 - share),
        )
    elif name == CONFLICTS:
        yield _technique(
            "pad or swizzle the rows of shared memory",
            f"bank conflicts take {share:.0%} of the time: without them",
            1 / (1 - share),
        )
    elif name == LAUNCH:
        yield from _fewer_launches(case, share)
    elif name == GRID:
        launch = case.largest
        waves = launch.occupancy.waves if launch is not None and launch.occupancy else 1.0
        change = (
            "split the work into more blocks, along a dimension that one block walks over"
            if waves <= 1
            else "let resident blocks share the last wave's work (persistent blocks, stream-K)"
        )
        yield _technique(
            change,
            f"{share:.0%} of the multiprocessors' time is idle: with it filled",
            1 / (1 - share),
        )
    elif name.startswith(LATENCY):
        yield from _hidden(case)
    if MUFU in name:
        yield from _polynomials(case)
    if name.startswith(TENSOR):
        yield from _half_of(case, TENSOR, "multiply in FP8 where its accuracy is enough")
    if name == DRAM:
        yield from _memory(case)
    if name == L2:
        on_gpu = "multiprocessors" in case.attributes
        yield from _half_of(case, L2, _FEWER_READS if on_gpu else _SMALLER_TILES)
    if name == SHARED:
        yield from _half_of(case, SHARED, "keep one operand in registers instead of shared memory")
    if name.startswith(ISSUE):
        yield from _fewer_instructions(case)


def _technique(text: str, because: str, estimate: float) -> Suggestion:
    rule = f"{because}, at most {estimate:.2f}x"
    return Suggestion(kind="technique", text=text, rule=rule, estimate=estimate)


def _fewer_launches(case: Case, share: float) -> Iterator[Suggestion]:
    unit = next(u for u in case.roofline.units if u.name == LAUNCH) if case.roofline else None
    count = int(unit.work or 1) if unit is not None else 1
    if count > 1:
        saved = share * (count - 1) / count
        yield _technique(
            f"make one launch of {count}",
            f"the other {count - 1} take {saved:.0%}",
            1 / (1 - saved),
        )
    else:
        yield _technique(
            "start the launch before the one before it ends (programmatic dependent launch)",
            f"an empty launch takes {share:.0%} of the time: with half of it hidden",
            1 / (1 - share / 2),
        )


_HIDING: Final[Mapping[str, str]] = {
    "long_scoreboard": "ask for data earlier: more stages in flight, or a producer warp",
    "wait": "interleave independent instructions, or more warps, between dependent ones",
    "barrier": "split barriers into arrive and wait, so that warps need not meet",
    "no_instruction": "shorten the code: roll loops whose bodies do not fit the instruction cache",
    "short_scoreboard": "load from shared memory an iteration ahead of the use",
    "math_pipe_throttle": "mix instructions of different pipes",
    "mio_throttle": "use wider shared memory instructions",
    "lg_throttle": "use wider global memory instructions",
    "branch_resolving": "replace branches in the loop by predicates",
    "gmma": "issue the next wgmma before waiting for the one before",
}


def _hidden(case: Case) -> Iterator[Suggestion]:
    stalls = stalls_of(case.evidence)
    if not stalls:
        return
    worst, cycles = max(stalls.items(), key=lambda item: item[1])
    share = cycles / (sum(stalls.values()) + 1)  # and one cycle to issue
    if worst in _HIDING:
        waits = STALLS.get(worst, f"for {worst}")
        because = f"a warp spends {share:.0%} of its time waiting {waits}: with half of it hidden"
        yield _technique(_HIDING[worst], because, 1 / (1 - share / 2))


def _polynomials(case: Case) -> Iterator[Suggestion]:
    """The share of exponentials that evens MUFU and the FMA pipe out."""
    shares = {unit.name: unit.share for unit in case.units if unit.kind == "measured"}
    mufu, fma = shares.get(MUFU), shares.get(FMA)
    if mufu is None or fma is None or fma >= mufu:
        return
    moved = (mufu - fma) / (mufu * (1 + _POLYNOMIAL))
    others = max((share for name, share in shares.items() if name not in (MUFU, FMA)), default=0)
    estimate = mufu / max(mufu * (1 - moved), others)
    because = f"MUFU is busy for {mufu:.0%} of the time, the FMA pipe for {fma:.0%}: evened out"
    yield _technique(
        f"compute {moved:.0%} of the exponentials by polynomials on the FMA pipe", because, estimate
    )


def _half_of(case: Case, name: str, text: str) -> Iterator[Suggestion]:
    units = case.units
    own = next((unit for unit in units if unit.name == name), None)
    if own is None:
        return
    rest = max((unit.share for unit in units if unit.name != name), default=0.0)
    estimate = own.share / max(own.share / 2, rest)
    because = (
        f"{name} is busy for {own.share:.0%} of the time, the next unit for {rest:.0%}: with half "
        f"the work of {name}"
    )
    yield _technique(text, because, estimate)


def _memory(case: Case) -> Iterator[Suggestion]:
    roofline = case.roofline
    own = next((unit for unit in case.units if unit.name == DRAM), None)
    if roofline is None or own is None:
        return
    if own.kind == "measured" and own.work and own.work > 1.1 * roofline.bytes_moved:
        times = own.work / roofline.bytes_moved
        because = f"DRAM moves {times:.1f} times the bytes that must cross it: with each moved once"
        text = "change the order of blocks so that data is read while it is in the L2 cache"
        yield _technique(text, because, min(times, 1 / (1 - own.share * (1 - 1 / times))))
    elif own.share < 0.9:
        because = f"the bytes that must cross DRAM need {own.share:.0%} of the time"
        yield _technique("keep more bytes in flight", because, 1 / max(own.share, 0.5))


def _fewer_instructions(case: Case) -> Iterator[Suggestion]:
    launch = case.largest
    counted = launch.static.loop_instructions if launch is not None and launch.static else {}
    total = sum(counted.values())
    integers = counted.get("alu", 0) + counted.get("other", 0)
    if total and integers / total >= 0.3:
        share = integers / total
        because = f"{share:.0%} of the instructions in the innermost loops are integer arithmetic"
        text = "take addresses and masks out of the loop: half of its integer instructions"
        yield _technique(text, f"{because}: with half of them", 1 / (1 - share / 2))


# --- Configurations of the space ------------------------------------------------------------------


def _configurations(sources: Sources) -> Iterator[Suggestion]:
    """Neighbours of the best configurations that were not tried, by the model."""
    space, predictor, table = sources.space, sources.predictor, sources.table
    if space is None or predictor is None:
        return
    tried = {trial.configuration for trial in table.trials}
    failing = _failing(table)
    ranked = sorted(range(len(table.valid)), key=lambda at: -table.fitness[at])[:_ELITES]
    elites = [sources.champion.configuration, *(table.valid[at].configuration for at in ranked)]
    pool = [
        configuration
        for elite in dict.fromkeys(elites)
        for configuration in space.neighbours(elite)
        if configuration not in tried and failing.isdisjoint(configuration.items())
    ]
    pool = list(dict.fromkeys(pool))
    changes = predictor.changes(sources.champion.configuration, pool)
    found = [(d, c) for d, c in zip(changes, pool, strict=True) if d is not None]
    shown = 0
    for difference, configuration in sorted(found, key=lambda item: -item[0].mean):
        if shown == _CONFIGURATIONS or difference.mean < math.log(_LEAST):
            return
        if difference.mean < _LEAST_CERTAINTY * difference.deviation:
            continue
        moved = _moved(sources, configuration)
        if moved or _has_no_figure(sources.limiter):
            shown += 1
            yield _configuration(sources, configuration, difference, moved)


def _failing(table: TrialTable) -> set[tuple[str, Value]]:
    """The parameters' values with which every trial failed."""
    valid = {item for trial in table.valid for item in trial.configuration.items()}
    return {item for trial in table.trials for item in trial.configuration.items()} - valid


def _configuration(
    sources: Sources, configuration: Configuration, difference: Difference, moved: str
) -> Suggestion:
    own = sources.champion.configuration
    changed = {name: value for name, value in configuration.items() if value != own[name]}
    rule = "the run has not tried it, and the search's model expects it to be faster"
    if moved:
        rule = f"it has {moved}, against the limiter; the search's model predicts the gain"
    if difference.low <= 0:
        rule += ", but is not sure: the interval holds 1"
    return Suggestion(
        kind="configuration",
        text=configuration_text(changed),
        rule=rule,
        estimate=math.exp(difference.mean),
        low=math.exp(difference.low),
        high=math.exp(difference.high),
        configuration=configuration.to_json(),
    )


_WANTED: Final[Mapping[str, tuple[tuple[str, int, str], ...]]] = {
    GRID: (("idle", -1, "less idle time of multiprocessors"), ("blocks", 1, "more blocks")),
    LATENCY: (
        ("bytes_in_flight", 1, "more shared memory a thread for data in flight"),
        ("warps", 1, "more warps a multiprocessor"),
        ("blocks", 1, "more blocks"),
    ),
    LAUNCH: (("launches", -1, "fewer launches"),),
    DRAM: (("bytes_in_flight", 1, "more bytes in flight"), ("warps", 1, "more warps")),
    L2: (("blocks", -1, "fewer, larger blocks"),),
}
"""By limiter: the figures of a launch that should rise (1) or fall (-1)."""


def _has_no_figure(limiter: Limiter) -> bool:
    """Whether no figure of a launch shows a way against the limiter."""
    return limiter.name.partition(":")[0] not in _WANTED


def _moved(sources: Sources, configuration: Configuration) -> str:
    """The figure that moves as the limiter asks, in words."""
    wanted = _WANTED.get(sources.limiter.name.partition(":")[0], ())
    if not wanted or sources.launch_figures is None:
        return ""
    mine = sources.launch_figures(sources.champion.configuration)
    other = sources.launch_figures(configuration)
    for name, direction, words in wanted:
        one, another = mine.get(name, 0.0), other.get(name, 0.0)
        if direction * (another - one) > 0.02 * max(abs(one), 1e-9):
            return f"{words} ({one:,.4g} to {another:,.4g})"
    return ""


# --- Values outside the space, and constraints that bind ------------------------------------------


def _outside(sources: Sources) -> Iterator[Suggestion]:
    """The next value beyond the end of an ordered domain, where the last step brought something."""
    for parameter in sources.table.parameters:
        own = sources.champion.configuration[parameter.name]
        if not isinstance(parameter, OrderedParameter) or isinstance(own, (bool, str)):
            continue
        values = [v for v in parameter.values if isinstance(v, (int, float))]
        if len(values) < 3 or own not in (values[0], values[-1]):
            continue
        near, further = (values[1], values[2]) if own == values[0] else (values[-2], values[-3])
        effect = _step(sources.effects, parameter.name, near)
        beyond = _next_value(float(further), float(near), float(own))
        if effect is None or beyond is None or effect.worth is None or not effect.low:
            continue
        if effect.low <= 1 or effect.worth < 1.02:
            continue
        end = "least" if own == values[0] else "greatest"
        rule = (
            f"{value_text(own)} is the {end} value of the space, and the step to it from "
            f"{value_text(near)} is worth {effect.worth:.2f}x; the estimate is half of that gain"
        )
        estimate = 1 + (effect.worth - 1) / 2
        yield Suggestion(
            kind="space", text=f"{parameter.name}={beyond:g}", rule=rule, estimate=estimate
        )


def _step(effects: Sequence[Effect], name: str, value: Value) -> Effect | None:
    found = (e for e in effects if e.parameter == name and e.source == value)
    return next((e for e in found if e.basis != "model" and not e.also), None)


def _next_value(further: float, near: float, own: float) -> float | None:
    """The value after `own` in a series of powers or of equal steps; None below 1."""
    if further > 0 and near > 0 and near / further == own / near != 1:
        beyond = own * own / near
    else:
        beyond = 2 * own - near
    return beyond if beyond >= 1 and beyond == int(beyond) else None


def _constraints(sources: Sources) -> Iterator[Suggestion]:
    """Neighbouring values that one constraint alone forbids, where the model expects more."""
    space, predictor, table = sources.space, sources.predictor, sources.table
    if space is None or predictor is None:
        return
    own = sources.champion.configuration
    active = set(space.active(own))
    wanted: list[tuple[str, Value, str]] = []
    for parameter in table.parameters:
        if parameter.name in active and own[parameter.name] in parameter:
            for value in parameter.adjacent(own[parameter.name]):
                changed = Configuration({**own, parameter.name: value})
                broken = space.violations(changed)
                if len(broken) == 1:
                    wanted.append((parameter.name, value, broken[0]))
    changes = predictor.changes(own, [{**own, name: value} for name, value, _ in wanted])
    for (name, value, constraint), difference in zip(wanted, changes, strict=True):
        if difference is not None and difference.mean >= math.log(_LEAST):
            yield Suggestion(
                kind="constraint",
                text=configuration_text({name: value}),
                rule=f"only the constraint `{constraint}` forbids it, and the search's model "
                "expects it to be faster",
                estimate=math.exp(difference.mean),
                low=math.exp(difference.low),
                high=math.exp(difference.high),
            )
