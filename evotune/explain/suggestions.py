"""Makes at most five suggestions, each derived from the limiter by a rule that it states.

An estimate is the present time / the expected time. Estimates of techniques are bounds: the gain if
the named part of the time disappears. Estimates of configurations come from the search's model,
with an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from evotune.explain.findings import Effect, Limiter, Suggestion
from evotune.explain.limiter_rules import CONFLICTS, GRID, LATENCY, SPILLS, Case, stalls_of
from evotune.explain.measured_pairs import TrialTable
from evotune.explain.predicting import LaunchFigures, Predictor
from evotune.explain.roofline import DRAM, FMA, ISSUE, L2, LAUNCH, MUFU, SHARED, TENSOR
from evotune.explain.sentences import STALLS
from evotune.report.wording import configuration_text, value_text
from evotune.search.gaussian_process import Difference
from evotune.space.bound import BoundSpace
from evotune.space.search_space import OrderedParameter, SearchSpace
from evotune.store.facts import Try
from evotune.trial import Configuration, Trial, Value

_MOST: Final = 5
_CONFIGURATIONS: Final = 3
_LEAST: Final = 1.01  # a smaller gain is not worth a line
_BEST_OF_MANY: Final = 1.5  # half intervals of a measured gain, three deviations
_ELITES: Final = 5  # whose neighbours are candidates


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything from which suggestions are made. `space` and `launch_figures` are None if the
    space was not read."""

    case: Case
    limiter: Limiter
    effects: Sequence[Effect]
    table: TrialTable
    predictor: Predictor | None
    champion: Trial
    space: BoundSpace | None
    launch_figures: Callable[[Configuration], LaunchFigures] | None


def suggestions_of(sources: Sources) -> tuple[Suggestion, ...]:
    """The suggestions, those with the greatest estimates first."""
    found = [
        *techniques_of(sources.limiter, sources.case),
        *measured_already(sources),
        *_configurations(sources),
        *_outside(sources),
        *_constraints(sources),
    ]
    worth = [item for item in found if item.estimate >= _LEAST]
    return tuple(sorted(worth, key=lambda item: -item.estimate)[:_MOST])


# --- Configurations of the space ------------------------------------------------------------------
def _configurations(sources: Sources) -> Iterator[Suggestion]:
    """Neighbours of the best configurations that were not tried, by the model."""
    space, predictor, table = sources.space, sources.predictor, sources.table
    if space is None or predictor is None:
        return
    pool = untried_neighbours(sources.champion.configuration, space, table)
    gains = predictor.gains(sources.champion, pool)
    found = [(d, c) for d, c in zip(gains, pool, strict=True) if d is not None]
    shown = 0
    for difference, configuration in sorted(found, key=lambda item: -item[0].mean):
        if shown == _CONFIGURATIONS:
            return
        if not is_worth_a_line(difference):
            continue
        moved = moved_figure(sources, configuration)
        if moved or _has_no_figure(sources):
            shown += 1
            yield _configuration(sources, configuration, difference, moved)


def untried_neighbours(
    champion: Configuration, space: SearchSpace, table: TrialTable
) -> list[Configuration]:
    """The untried neighbours of the champion and of the best trials, without values with which
    every trial failed."""
    tried = {trial.configuration for trial in table.trials}
    failing = _failing(table)
    ranked = sorted(range(len(table.valid)), key=lambda at: -table.fitness[at])[:_ELITES]
    elites = [champion, *(table.valid[at].configuration for at in ranked)]
    found = [
        configuration
        for elite in dict.fromkeys(elites)
        for configuration in space.neighbours(elite)
        if configuration not in tried and failing.isdisjoint(configuration.items())
    ]
    return list(dict.fromkeys(found))


def with_tries(
    suggestions: Sequence[Suggestion], own: Configuration, stored: Sequence[Try]
) -> tuple[Suggestion, ...]:
    """The suggestions for configuration `own`. A suggestion that `--try` has measured gets its
    result from `stored`, the results in the run's store."""
    tried = [each for each in stored if dict(each.own) == own.to_json()]

    def with_result(item: Suggestion) -> Suggestion:
        found = [each for each in tried if each.configuration == item.configuration]
        if not found or item.configuration is None:
            return item
        last = found[-1]
        return msgspec.structs.replace(
            item,
            measured=last.measured,
            measured_low=last.measured_low,
            measured_high=last.measured_high,
            outcome=last.outcome,
        )

    return tuple(map(with_result, suggestions))


def measured_already(sources: Sources) -> Iterator[Suggestion]:
    """Single changes of the explained trial that were measured in alternation with it, and won.
    Among about fifty changes some 95% interval excludes 1 by chance, so a gain must be greater.
    Processes differ by more than the interval of one process shows, so its low end must be above
    1%."""
    for effect in sources.effects:
        if effect.basis != "paired" or effect.same_code or not effect.worth or not effect.low:
            continue
        if effect.high is None:
            continue
        half_interval = math.log(effect.high / effect.low) / 2
        is_best = -math.log(effect.worth) > _BEST_OF_MANY * half_interval
        if is_best and effect.high * _LEAST <= 1:
            changed = {effect.parameter: effect.source, **effect.also}
            yield Suggestion(
                kind="configuration",
                text=configuration_text(changed),
                rule="it was measured in alternation with this trial, and is faster",
                estimate=1 / effect.worth,
                low=1 / effect.high,
                high=1 / effect.low,
                configuration={**sources.champion.configuration, **changed},
            )


def is_worth_a_line(difference: Difference) -> bool:
    """Whether a predicted gain is large enough and its 95% interval excludes 1. With weaker
    conditions most suggestions are wrong, because a search has tried what its model expects to be
    faster."""
    return difference.low > 0 and difference.mean >= math.log(_LEAST)


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


def _has_no_figure(sources: Sources) -> bool:
    """Whether no known figure of a launch shows a way against the limiter: a CPU has none."""
    wanted = _WANTED.get(sources.limiter.name.partition(":")[0], ())
    if sources.launch_figures is None:
        return not wanted
    known = sources.launch_figures(sources.champion.configuration)
    return not any(name in known for name, _, _ in wanted)


def moved_figure(sources: Sources, configuration: Configuration) -> str:
    """The figure that moves as the limiter asks, in words."""
    wanted = _WANTED.get(sources.limiter.name.partition(":")[0], ())
    if not wanted or sources.launch_figures is None:
        return ""
    mine = sources.launch_figures(sources.champion.configuration)
    other = sources.launch_figures(configuration)
    for name, direction, words in wanted:
        if name not in mine or name not in other:
            continue
        one, another = mine[name], other[name]
        if direction * (another - one) > 0.02 * max(abs(one), 1e-9):
            return f"{words} ({one:,.4g} to {another:,.4g})"
    return ""


# --- Values outside the space, and constraints that bind ------------------------------------------
def _outside(sources: Sources) -> Iterator[Suggestion]:
    """The next value beyond the end of an ordered domain, if the last step gained something and no
    constraint forbids the next one. Without the space, the end of the values that were tried."""
    known = sources.space.parameters if sources.space is not None else ()
    domains = {parameter.name: parameter for parameter in known}
    where = "of the space" if sources.space is not None else "that was tried"
    for parameter in sources.table.parameters:
        own = sources.champion.configuration[parameter.name]
        if not isinstance(parameter, OrderedParameter) or isinstance(own, (bool, str)):
            continue
        values = [v for v in parameter.values if isinstance(v, (int, float))]
        if len(values) < 3 or own not in (values[0], values[-1]):
            continue
        domain = domains.get(parameter.name)
        if domain is not None and own not in (domain.values[0], domain.values[-1]):
            continue  # of a large domain the table has the tried values alone
        near, further = (values[1], values[2]) if own == values[0] else (values[-2], values[-3])
        effect = _step(sources.effects, parameter.name, near)
        beyond = _next_value(float(further), float(near), float(own))
        if effect is None or beyond is None or effect.worth is None or not effect.low:
            continue
        if effect.low <= 1 or effect.worth < 1.02:
            continue
        if _is_forbidden(sources, parameter.name, int(beyond)):
            continue
        end = "least" if own == values[0] else "greatest"
        rule = (
            f"{value_text(own)} is the {end} value {where}, and the step to it from "
            f"{value_text(near)} is worth {effect.worth:.2f}x; the estimate is half of that gain, "
            f"if the kernel takes {beyond:.0f}"
        )
        estimate = 1 + (effect.worth - 1) / 2
        yield Suggestion(
            kind="space", text=f"{parameter.name}={beyond:.0f}", rule=rule, estimate=estimate
        )


def _is_forbidden(sources: Sources, name: str, value: int) -> bool:
    """Whether the space's constraints forbid the champion with this value."""
    if sources.space is None:
        return False
    return bool(sources.space.violations({**sources.champion.configuration, name: value}))


def _step(effects: Sequence[Effect], name: str, value: Value) -> Effect | None:
    found = (e for e in effects if e.parameter == name and e.source == value)
    sure = (e for e in found if e.basis != "model" and not e.also and not e.same_code)
    return next(sure, None)


def _next_value(further: float, near: float, own: float) -> float | None:
    """The value after `own` in a series of powers or of equal steps; None below 1."""
    if further > 0 and near > 0 and near / further == own / near != 1:
        beyond = own * own / near
    else:
        beyond = 2 * own - near
    return beyond if beyond >= 1 and beyond == int(beyond) else None


def _constraints(sources: Sources) -> Iterator[Suggestion]:
    """Neighbouring values that only one constraint forbids and that the model expects to be
    faster."""
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
    gains = predictor.gains(sources.champion, [{**own, name: value} for name, value, _ in wanted])
    for (name, value, constraint), difference in zip(wanted, gains, strict=True):
        if difference is not None and is_worth_a_line(difference):
            yield Suggestion(
                kind="constraint",
                text=configuration_text({name: value}),
                rule=f"only the constraint `{constraint}` forbids it, and the search's model "
                "expects it to be faster",
                estimate=math.exp(difference.mean),
                low=math.exp(difference.low),
                high=math.exp(difference.high),
            )


# Suggestions of techniques: what would go away or be halved, by the limiter. An estimate is a
# bound: the gain if the named part of the time goes away. A technique that the device does not have
# is not suggested.
_FP8: Final = 89  # the first architecture that has it
_HOPPER: Final = 90  # the first one with clusters and programmatic dependent launch
_POLYNOMIAL: Final = 0.75
"""FMA time of an exponential by a polynomial of degree 5, in MUFU times: six instructions at eight
times MUFU's rate."""


def techniques_of(limiter: Limiter, case: Case) -> Iterator[Suggestion]:
    name, share = limiter.name, limiter.share or 0.0
    if name == SPILLS:
        yield _technique(
            "keep fewer values in registers, or allow more of them by looser launch bounds",
            f"spills are {share:.0%} of the instructions: without them",
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
    if name.startswith(TENSOR) and _arch(case) >= _FP8:
        yield from _half_of(case, TENSOR, "multiply in FP8 where its accuracy is enough")
    if name == DRAM:
        yield from _memory(case)
    if name == L2:
        yield from _half_of(case, L2, _fewer_reads(case))
    if name == SHARED:
        yield from _half_of(case, SHARED, "keep one operand in registers instead of shared memory")
    if name.startswith(ISSUE):
        yield from _fewer_instructions(case)


def _on_gpu(case: Case) -> bool:
    return "multiprocessors" in case.attributes


def _arch(case: Case) -> int:
    """A GPU's compute capability: 90 for 9.0; 0 of a CPU."""
    found = case.attributes.get("arch", 0)
    return found if isinstance(found, int) else 0


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
    elif not _on_gpu(case):
        yield _technique(
            "work on fewer threads, or on one",
            f"starting all threads takes {share:.0%} of the time: without it",
            1 / (1 - min(share, 0.9)),
        )
    elif _arch(case) >= _HOPPER:
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
    verb = "are" if name == TENSOR else "is"
    because = (
        f"{name} {verb} busy for {own.share:.0%} of the time, the next unit for {rest:.0%}: with "
        f"half the work of {name}"
    )
    yield _technique(text, because, estimate)


def _fewer_reads(case: Case) -> str:
    if not _on_gpu(case):
        return "work on tiles that stay in a core's own cache, or make fewer passes"
    ways = "clusters, larger tiles" if _arch(case) >= _HOPPER else "larger tiles"
    return f"read each tile once for two blocks ({ways})"


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
        what = "integer arithmetic, comparisons, moves and the like"
        because = f"{share:.0%} of the instructions in the innermost loops are {what}"
        text = "take addresses and masks out of the loop"
        yield _technique(text, f"{because}: with half of them", 1 / (1 - share / 2))
