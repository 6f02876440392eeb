"""An explanation as text for a terminal of 80 columns: a headline, then short blocks."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from evotune.explain._sentences import BASES, STALLS
from evotune.report import wording
from evotune.trial import Json
from evotune.util.words import counted, printable

if TYPE_CHECKING:
    from evotune.explain.findings import (
        Against,
        Effect,
        Findings,
        Limiter,
        OverSpace,
        Pair,
        Suggestion,
    )

WIDTH: Final = 80
_BAR: Final = 20
_EFFECTS: Final = 10
_FAILED: Final = 3
_NARROW: Final = 4.0  # the upper end of an interval / the lower one
_IMPORTANT: Final = 6
_LEAST_SHARE: Final = 0.02
_HOPELESS: Final = 8
_MISSING: Final = 8
_WAITS: Final = 3
NO_DIFFERENCE: Final = "no difference in the machine is known"


def text_of(found: Findings) -> str:
    """All blocks that have content; a block ends with an empty line."""
    blocks = [
        list(_wrapped(", ".join(filter(None, (found.space, f"run {found.run}", found.device))))),
        list(_wrapped(found.headline)),
        list(_limiter(found.limiter)),
        list(_roofline(found)),
        list(_machine(found)),
        list(_effects(found.effects)),
        list(_space(found.over_space)),
        list(_against(found.against)),
        list(_next(found.next)),
        list(_missing(found.missing)),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def _wrapped(text: str, indent: str = "", first: str | None = None) -> Iterator[str]:
    yield from textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _limiter(limiter: Limiter) -> Iterator[str]:
    share = f", {limiter.share:.0%}" if limiter.share is not None else ""
    yield f"Held by: {limiter.name}{share}" if limiter.name else "Held by: not known"
    for fact in limiter.evidence:
        yield from _wrapped(f"{fact.text} ({fact.kind})", "    ", "  - ")
    yield from _wrapped(f"rule: {limiter.rule}", "    ", "  ")


def _roofline(found: Findings) -> Iterator[str]:
    roofline = found.roofline
    if roofline is None or not roofline.units:
        return
    ceilings = "measured" if roofline.ceilings == "measured" else "published"
    yield from _wrapped(
        f"Busy part of the time on {roofline.case}, by {ceilings} ceilings; a unit marked "
        "`model` needs at least so much for the problem's own work"
    )
    for unit in roofline.units:
        filled = round(_BAR * min(unit.share, 1.0))
        bar = "#" * filled + "." * (_BAR - filled)
        yield f"  {unit.name:<14} {bar} {unit.share:>4.0%}  {unit.kind}"


def _machine(found: Findings) -> Iterator[str]:
    """The machine code of the longest launch, its place on a multiprocessor, and its waits."""
    code = found.machine_code
    if code is None:
        return
    yield f"In the machine, by {printable(code.source)}"
    total = sum(code.instructions.values())
    if total:
        most = sorted(code.instructions.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{name} {count / total:.0%}" for name, count in most if count)
        where = "in the innermost loops" if code.in_loops else "in all"
        yield from _wrapped(f"{counted(total, 'instruction')} {where}: {shares}", "    ", "  - ")
    if code.registers:  # a CPU's are fixed
        spilled = counted(code.spilled_bytes, "byte") if code.spilled_bytes else "nothing"
        yield from _wrapped(
            f"{counted(code.registers, 'register')} a thread, {spilled} spilled", "    ", "  - "
        )
    if code.warps is not None:
        bound = f", bound by {code.bound_by}" if code.bound_by else ""
        text = f"{code.warps} of {code.max_warps} warps on a multiprocessor{bound}"
        yield from _wrapped(text, "    ", "  - ")
    waits = sorted(waits_of(found.counters).items(), key=lambda item: -item[1])[:_WAITS]
    if waits and waits[0][1] > 0:
        told = ", ".join(f"{cycles:.1f} {STALLS.get(name, name)}" for name, cycles in waits)
        text = f"cycles that a warp waits between two instructions: {told}"
        yield from _wrapped(text, "    ", "  - ")


def shown_effects(effects: Sequence[Effect]) -> list[Effect]:
    """The effects that say something: measured in turn, or with an interval that leaves out 1. Of
    two trials of a quiet run also those whose interval is narrow."""
    return [e for e in effects if e.worth is not None and not e.same_code and _says_something(e)]


def _says_something(effect: Effect) -> bool:
    low, high = effect.low or 0.0, effect.high or math.inf
    if effect.basis == "paired" or low > 1 or high < 1:
        return True
    return effect.basis == "trials" and low > 0 and high / low <= _NARROW


def waits_of(counters: Mapping[str, Json]) -> dict[str, float]:
    """The cycles a warp waits, by reason; {} without counters."""
    stalls = counters.get("stalls")
    found = stalls.items() if isinstance(stalls, dict) else ()
    return {name: cycles for name, cycles in found if name not in ("selected", "not_selected")}


def _effects(effects: Sequence[Effect]) -> Iterator[str]:
    shown = shown_effects(effects)[:_EFFECTS]
    failed = [e for e in effects if e.worth is None][:_FAILED]
    if not shown and not failed:
        return
    if shown:
        yield "Worth of its choices: time with the other value / time with this one"
    else:
        yield "Single changes of it that fail"
    bases = "; ".join(f"{b}: {BASES[b]}" for b in BASES if b in {e.basis for e in shown})
    yield from _wrapped(bases, "  ", "  ")
    for effect in shown:
        choice = f"{effect.parameter}={wording.value_text(effect.to)}"
        other = f"over {wording.value_text(effect.source)}"
        interval = f" [{effect.low:.2f}, {effect.high:.2f}]" if effect.low is not None else ""
        figure = f"{effect.worth:.2f}x{interval}"
        line = f"  {choice:<28} {other:<14} {figure:<20} {effect.basis}"
        yield from [printable(line)] if len(line) <= WIDTH else _wrapped(line, "      ", "")
        if effect.also:
            yield from _wrapped(f"with {wording.configuration_text(effect.also)}", "      ")
        if effect.because:
            yield from _wrapped(effect.because, "      ")
    for effect in failed:
        value = f"{effect.parameter}={wording.value_text(effect.source)}"
        reason = f": {effect.reason}" if effect.reason else ""
        yield from _wrapped(f"{value} fails, {effect.outcome}{reason}", "    ", "  ")


def _space(found: OverSpace) -> Iterator[str]:
    lines: list[str] = []
    decisive = [i for i in found.importance if max(i.best, i.model or 0.0) >= _LEAST_SHARE]
    if decisive:
        named = ", ".join(
            f"{item.parameter} {item.best:.0%}"
            + (f" / {item.model:.0%}" if item.model is not None else "")
            for item in decisive[:_IMPORTANT]
        )
        by = "the best trials" + (" / the model" if decisive[0].model is not None else "")
        lines += _wrapped(f"parameters that decide, by {by}: {named}", "    ", "  ")
    for title, texts in (
        ("depend on each other", [pair_line(pair) for pair in found.pairs]),
        ("cliff", [cliff.text for cliff in found.cliffs]),
        ("never valid", [value.text for value in found.hopeless[:_HOPELESS]]),
    ):
        for text in texts:
            lines += _wrapped(f"{title}: {text}", "    ", "  ")
    if len(found.hopeless) > _HOPELESS:
        lines.append(f"  and {len(found.hopeless) - _HOPELESS} more values that were never valid")
    if lines:
        yield f"Over the space: {found.valid} of {found.trials} trials are valid"
        yield from lines


def pair_line(pair: Pair) -> str:
    """Its text, its basis, and why."""
    return f"{pair.text} ({pair.basis})" + (f"; {pair.because}" if pair.because else "")


def _against(found: Against | None) -> Iterator[str]:
    if found is None:
        return
    yield from _wrapped(against_line(found))
    if found.changed:
        yield from _wrapped(changed_line(found), "    ", "  ")
    for line in found.lines:
        yield from _wrapped(f"{line.text} ({line.kind})", "    ", "  - ")
    if not found.lines:
        yield f"  {NO_DIFFERENCE}"


def against_line(found: Against) -> str:
    """The other side, and how many times as fast this one is, with the 95% interval."""
    if found.worth is None:
        return f"Against {found.name}"
    known = found.low is not None and found.high is not None
    interval = f" [{found.low:.2f}, {found.high:.2f}]" if known else ""
    return f"Against {found.name}: {found.worth:.2f}x its speed{interval}"


def changed_line(found: Against) -> str:
    """The parameters that differ, with both values."""
    return ", ".join(
        f"{name} {_value(mine)} (there {_value(other)})"
        for name, (mine, other) in found.changed.items()
    )


def _value(value: object) -> str:
    return wording.value_text(value) if isinstance(value, (bool, int, float, str)) else "-"


def _next(suggestions: Sequence[Suggestion]) -> Iterator[str]:
    if not suggestions:
        yield "Next: no suggestion, since no rule expects a gain by this evidence"
        return
    yield "Next"
    for number, item in enumerate(suggestions, start=1):
        yield from _wrapped(f"{item.kind}: {item.text}", "     ", f"  {number}. ")
        yield from _wrapped(item.rule, "     ")
        yield from _wrapped(estimate_line(item), "     ")


def estimate_line(item: Suggestion) -> str:
    """The estimate, and what `--try` found."""
    return f"estimate {estimate_text(item)}{_measured(item)}"


def estimate_text(item: Suggestion) -> str:
    """`1.02x [0.93, 1.12]`."""
    if item.low is None or item.high is None:
        return f"{item.estimate:.2f}x"
    return f"{item.estimate:.2f}x [{item.low:.2f}, {item.high:.2f}]"


def _measured(item: Suggestion) -> str:
    if item.measured is not None:
        return (
            f"; measured {item.measured:.3f}x [{item.measured_low:.3f}, {item.measured_high:.3f}]"
        )
    return f"; tried: {item.outcome}" if item.outcome else ""


def _missing(missing: Sequence[str]) -> Iterator[str]:
    if missing:
        yield "Missing"
    for text in missing[:_MISSING]:
        yield from _wrapped(text, "    ", "  - ")
    if len(missing) > _MISSING:
        yield f"  - and {len(missing) - _MISSING} more, which --format json lists"
