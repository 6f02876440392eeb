"""An explanation as text for a terminal: a headline, then short blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from evotune.explain.sentences import BASES, STALLS
from evotune.report import wording
from evotune.report.screen import paragraph, plain
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


class _Paragraph(NamedTuple):
    """A text to wrap: its first line begins with `label`, the others with as many blanks as
    `indent` says. A `str` is a line that is never wrapped."""

    text: str
    indent: int = 0
    label: str = ""


def text_of(found: Findings, width: int = 80) -> str:
    """The text: all blocks that have content, wrapped at `width` columns. A block ends with an
    empty line."""
    blocks: list[list[_Paragraph | str]] = [
        [_Paragraph(", ".join(filter(None, (found.space, f"run {found.run}", found.device))))],
        [_Paragraph(found.headline)],
        list(_limiter(found.limiter)),
        list(_roofline(found)),
        list(_machine(found)),
        list(_effects(found.effects)),
        list(_space(found.over_space)),
        list(_against(found.against)),
        list(_next(found.next)),
        list(_missing(found.missing)),
    ]
    return "\n".join(
        "".join(
            line + "\n"
            if isinstance(line, str)
            else plain(paragraph(line.text, width, label=line.label, indent=line.indent))
            for line in lines
        )
        for lines in blocks
        if lines
    )


def _limiter(limiter: Limiter) -> Iterator[_Paragraph | str]:
    share = f", {limiter.share:.0%}" if limiter.share is not None else ""
    yield f"Limited by: {limiter.name}{share}" if limiter.name else "Limited by: unknown"
    for fact in limiter.evidence:
        yield _Paragraph(f"{fact.text} ({fact.kind})", 4, "  - ")
    yield _Paragraph(f"rule: {limiter.rule}", 4, "  ")


def _roofline(found: Findings) -> Iterator[_Paragraph | str]:
    roofline = found.roofline
    if roofline is None or not roofline.units:
        return
    ceilings = "measured" if roofline.ceilings == "measured" else "published"
    yield _Paragraph(
        f"Busy part of the time on {roofline.case}, by {ceilings} ceilings; a unit marked "
        "`model` needs at least so much for the problem's own work"
    )
    for unit in roofline.units:
        filled = round(_BAR * min(unit.share, 1.0))
        bar = "#" * filled + "." * (_BAR - filled)
        yield f"  {unit.name:<14} {bar} {unit.share:>4.0%}  {unit.kind}"


def _machine(found: Findings) -> Iterator[_Paragraph | str]:
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
        yield _Paragraph(f"{counted(total, 'instruction')} {where}: {shares}", 4, "  - ")
    if code.registers:  # a CPU's are fixed
        spilled = counted(code.spilled_bytes, "byte") if code.spilled_bytes else "nothing"
        yield _Paragraph(
            f"{counted(code.registers, 'register')} a thread, {spilled} spilled", 4, "  - "
        )
    if code.warps is not None:
        bound = f", bound by {code.bound_by}" if code.bound_by else ""
        text = f"{code.warps} of {code.max_warps} warps on a multiprocessor{bound}"
        yield _Paragraph(text, 4, "  - ")
    waits = sorted(waits_of(found.counters).items(), key=lambda item: -item[1])[:_WAITS]
    if waits and waits[0][1] > 0:
        told = ", ".join(f"{cycles:.1f} {STALLS.get(name, name)}" for name, cycles in waits)
        text = f"cycles that a warp waits between two instructions: {told}"
        yield _Paragraph(text, 4, "  - ")


def shown_effects(effects: Sequence[Effect]) -> list[Effect]:
    """The effects worth showing: those measured in alternation, and those with an interval that
    excludes 1. In a quiet run also those from two trials whose interval is narrow.
    """
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


def _effects(effects: Sequence[Effect]) -> Iterator[_Paragraph | str]:
    shown = shown_effects(effects)[:_EFFECTS]
    failed = [e for e in effects if e.worth is None][:_FAILED]
    if not shown and not failed:
        return
    if shown:
        yield "Worth of its choices: time with the other value / time with this one"
    else:
        yield "Single changes of it that fail"
    bases = "; ".join(f"{b}: {BASES[b]}" for b in BASES if b in {e.basis for e in shown})
    if bases:
        yield _Paragraph(bases, 2, "  ")
    for effect in shown:
        choice = f"{effect.parameter}={wording.value_text(effect.to)}"
        other = f"over {wording.value_text(effect.source)}"
        interval = f" [{effect.low:.2f}, {effect.high:.2f}]" if effect.low is not None else ""
        figure = f"{effect.worth:.2f}x{interval}"
        line = f"  {choice:<28} {other:<14} {figure:<20} {effect.basis}"
        yield _Paragraph(line, 6)
        if effect.also:
            yield _Paragraph(f"with {wording.configuration_text(effect.also)}", 6, "      ")
        if effect.because:
            yield _Paragraph(effect.because, 6, "      ")
    for effect in failed:
        value = f"{effect.parameter}={wording.value_text(effect.source)}"
        reason = f": {effect.reason}" if effect.reason else ""
        yield _Paragraph(f"{value} fails, {effect.outcome}{reason}", 4, "  ")


def _space(found: OverSpace) -> Iterator[_Paragraph | str]:
    lines: list[_Paragraph | str] = []
    decisive = [i for i in found.importance if max(i.best, i.model or 0.0) >= _LEAST_SHARE]
    if decisive:
        named = ", ".join(
            f"{item.parameter} {item.best:.0%}"
            + (f" / {item.model:.0%}" if item.model is not None else "")
            for item in decisive[:_IMPORTANT]
        )
        by = "the best trials" + (" / the model" if decisive[0].model is not None else "")
        lines.append(_Paragraph(f"parameters that decide, by {by}: {named}", 4, "  "))
    for title, texts in (
        ("depend on each other", [pair_line(pair) for pair in found.pairs]),
        ("cliff", [cliff.text for cliff in found.cliffs]),
        ("never valid", [value.text for value in found.hopeless[:_HOPELESS]]),
    ):
        for text in texts:
            lines.append(_Paragraph(f"{title}: {text}", 4, "  "))
    if len(found.hopeless) > _HOPELESS:
        lines.append(f"  and {len(found.hopeless) - _HOPELESS} more values that were never valid")
    if lines:
        yield f"Over the space: {found.valid} of {found.trials} trials are valid"
        yield from lines


def pair_line(pair: Pair) -> str:
    """A line about a pair of choices: its effect, how it is known, and the reason."""
    return f"{pair.text} ({pair.basis})" + (f"; {pair.because}" if pair.because else "")


def _against(found: Against | None) -> Iterator[_Paragraph | str]:
    if found is None:
        return
    yield _Paragraph(against_line(found))
    if found.changed:
        yield _Paragraph(changed_line(found), 4, "  ")
    for line in found.lines:
        yield _Paragraph(f"{line.text} ({line.kind})", 4, "  - ")
    if not found.lines:
        yield f"  {NO_DIFFERENCE}"


def against_line(found: Against) -> str:
    """A line with the other side, and how many times as fast this side is, with the 95%
    interval."""
    if found.worth is None:
        return f"Against {found.name}"
    known = found.low is not None and found.high is not None
    interval = f" [{found.low:.2f}, {found.high:.2f}]" if known else ""
    return f"Against {found.name}: {found.worth:.2f}x its speed{interval}"


def changed_line(found: Against) -> str:
    """A line with the parameters that differ, with both values."""
    return ", ".join(
        f"{name} {_value(mine)} (there {_value(other)})"
        for name, (mine, other) in found.changed.items()
    )


def _value(value: object) -> str:
    return wording.value_text(value) if isinstance(value, (bool, int, float, str)) else "-"


def _next(suggestions: Sequence[Suggestion]) -> Iterator[_Paragraph | str]:
    if not suggestions:
        yield "Next: no suggestion, since no rule expects a gain by this evidence"
        return
    yield "Next"
    for number, item in enumerate(suggestions, start=1):
        yield _Paragraph(f"{item.kind}: {item.text}", 5, f"  {number}. ")
        yield _Paragraph(item.rule, 5, "     ")
        yield _Paragraph(estimate_line(item), 5, "     ")


def estimate_line(item: Suggestion) -> str:
    """A line with a suggestion's estimate, and the result of `--try`."""
    return f"estimate {estimate_text(item)}{_measured(item)}"


def estimate_text(item: Suggestion) -> str:
    """A suggestion's estimate: `1.02x [0.93, 1.12]`."""
    if item.low is None or item.high is None:
        return f"{item.estimate:.2f}x"
    return f"{item.estimate:.2f}x [{item.low:.2f}, {item.high:.2f}]"


def _measured(item: Suggestion) -> str:
    if item.measured is not None:
        return (
            f"; measured {item.measured:.3f}x [{item.measured_low:.3f}, {item.measured_high:.3f}]"
        )
    return f"; tried: {item.outcome}" if item.outcome else ""


def _missing(missing: Sequence[str]) -> Iterator[_Paragraph | str]:
    if missing:
        yield "Missing"
    for text in missing[:_MISSING]:
        yield _Paragraph(text, 4, "  - ")
    if len(missing) > _MISSING:
        yield f"  - and {len(missing) - _MISSING} more, which --format json lists"
