"""The pictures of an explanation: roofline, units, waits or machine code, effects, parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from evotune.explain.explanation_text import shown_effects, waits_of
from evotune.explain.sentences import BASES, STALLS, other_text
from evotune.report import wording
from evotune.report.html.pictures import NARROW, WIDE, Drawing, Picture, fitting, text_width, widest

if TYPE_CHECKING:
    from evotune.explain.findings import Effect, Findings, MachineCode, Roofline, Unit


_EFFECTS: Final = 12
_WAITS: Final = 8
_PARAMETERS: Final = 8
_LEAST_SHARE: Final = 0.01  # of the importance
_IN_CODE: Final = {
    "tensor": "tensor cores (MMA)",
    "mufu": "MUFU",
    "fma": "FMA",
    "alu": "ALU",
    "shared_load": "loads from shared memory",
    "shared_store": "stores to shared memory",
    "global_load": "loads from global memory",
    "global_store": "stores to global memory",
    "async_copy": "asynchronous copies",
    "barrier": "barriers",
    "branch": "branches",
    "local": "spills",
    "vector": "vector arithmetic without FMA",
    "scalar": "scalar arithmetic",
    "load": "loads",
    "store": "stores",
    "other": "others",
}


def explanation_pictures(found: Findings) -> list[Picture]:
    """The pictures for which there are data, in the order of reading."""
    return [*_machine(found), *_choices(found)]


def no_waits_text(found: Findings) -> str:
    """Why there are no bars of waits, and what replaces them; "" if there are some."""
    if waits_of(found.counters):
        return ""
    reason = found.counters.get("unavailable")
    told = f": {reason}" if reason else ", since this device has no counters for them"
    instead = ""
    if found.machine_code is not None:
        instead = " The instructions in the machine code stand in their place."
    return f"Waits and their reasons are not known{told}.{instead}"


def _machine(found: Findings) -> Iterator[Picture]:
    roofline, limiter = found.roofline, found.limiter.name
    if roofline is not None:
        drawn = roofline_picture(roofline, f"trial {found.trial}", limiter)
        if drawn is not None:
            yield drawn
        if roofline.units:
            yield _units(found)
    waits = waits_of(found.counters)
    if waits:
        yield _waits(waits, limiter)
    elif found.machine_code is not None and any(found.machine_code.instructions.values()):
        yield _code(found.machine_code)


def _choices(found: Findings) -> Iterator[Picture]:
    effects = effects_picture(shown_effects(found.effects)[:_EFFECTS])
    if effects is not None:
        yield effects
    if found.over_space.importance:
        yield _parameters(found)


def _units(found: Findings) -> Picture:
    assert found.roofline is not None
    units = found.roofline.units
    holding = found.limiter.name.split(" + ")
    kinds = {unit.kind for unit in units}
    rows = [
        BarRow(
            unit.name,
            [(unit.share, unit.kind, f"{unit.share:.0%}")],
            strong=unit.name in holding,
        )
        for unit in units
    ]
    names = [
        ("measured", "counted while it ran"),
        ("model", "needed at least, by the problem's work"),
    ]
    said = ", ".join(f"{unit.name} {unit.share:.0%} ({unit.kind})" for unit in units)
    return _picture(
        f"Busy part of the time on {found.roofline.case}",
        f"Busy part of the time: {said}.",
        rows,
        most=1.0,
        names=[name for name in names if name[0] in kinds],
    )


def _waits(waits: dict[str, float], limiter: str) -> Picture:
    ranked = sorted(waits.items(), key=lambda item: -item[1])
    shown, rest = ranked[:_WAITS], ranked[_WAITS:]
    rows = [
        BarRow(
            STALLS.get(name, name),
            [(cycles, "measured", f"{cycles:.1f}")],
            strong=limiter.endswith(f": {name}"),
        )
        for name, cycles in shown
    ]
    said = ", ".join(f"{cycles:.1f} {STALLS.get(name, name)}" for name, cycles in shown)
    note = f"{len(rest)} more reasons are {sum(c for _, c in rest):.1f} cycles together."
    return _picture(
        "Cycles that a warp waits between two instructions",
        f"Cycles that a warp waits between two instructions: {said}.",
        rows,
        most=shown[0][1],
        note=note if rest else "",
    )


def _code(code: MachineCode) -> Picture:
    total = sum(code.instructions.values())
    ranked = sorted(code.instructions.items(), key=lambda item: -item[1])
    rows = [
        BarRow(
            _IN_CODE.get(name, name),
            [(count / total, "static", f"{count / total:.0%}")],
            strong=name == "local",
        )
        for name, count in ranked
        if count
    ]
    where = "innermost loops" if code.in_loops else "whole code"
    said = ", ".join(f"{count} {_IN_CODE.get(name, name)}" for name, count in ranked if count)
    facts = [f"Read by {code.source}, not counted while it ran."]
    if code.registers:  # of a GPU: a CPU's function saves registers without spilling
        facts.append(f"{code.registers} registers a thread, {code.spilled_bytes:,} bytes spilled.")
    if code.warps is not None:
        bound = f", bound by {code.bound_by}" if code.bound_by else ""
        facts.append(f"{code.warps} of {code.max_warps} warps are resident{bound}.")
    return _picture(
        f"Instructions in the {where}",
        f"{total} instructions in the {where} of {code.kernel}: {said}.",
        rows,
        most=max(code.instructions.values()) / total,
        note=" ".join(facts),
    )


def _parameters(found: Findings) -> Picture:
    over = found.over_space
    shown = [i for i in over.importance if max(i.best, i.model or 0.0) >= _LEAST_SHARE]
    shown = shown[:_PARAMETERS] or list(over.importance[:1])
    rows = []
    for item in shown:
        bars = [(item.best, "measured", f"{item.best:.0%}")]
        if item.model is not None:
            bars.append((item.model, "model", f"{item.model:.0%}"))
        rows.append(BarRow(item.parameter, bars))
    names = [("measured", "by how the best trials differ from all")]
    if any(item.model is not None for item in shown):
        names.append(("model", "by the search's model"))
    said = ", ".join(
        f"{item.parameter} {item.best:.0%}"
        + (f" ({item.model:.0%} in the model)" if item.model is not None else "")
        for item in shown
    )
    return _picture(
        f"Parameters that decide, over {over.valid} valid trials",
        f"Share of each parameter: {said}.",
        rows,
        most=max(max(item.best, item.model or 0.0) for item in shown) or 1.0,
        names=names,
    )


def _picture(
    title: str,
    alternative: str,
    rows: Sequence[BarRow],
    *,
    most: float,
    note: str = "",
    names: Sequence[tuple[str, str]] = (),
) -> Picture:
    def drawn(width: float) -> Drawing:
        drawing = bars_drawing(rows, width, most=most or 1.0)
        if len(names) > 1:
            legend(drawing, names)
        return drawing

    single = f"{names[0][1].capitalize()}." if len(names) == 1 else ""
    return Picture(title, alternative, drawn(WIDE), drawn(NARROW), note or single)


_LINE: Final = 16  # a line of text
_BAR: Final = 13
_GAP: Final = 8  # between rows
_SIDE: Final = 10  # between label, bar and figure
_MOST_LABEL: Final = 0.42  # of the width; a longer label stands above its bar


@dataclass(frozen=True, slots=True)
class BarRow:
    """A label with bars: (value, style class, its figure in words). `strong`: whether to emphasize
    the row."""

    label: str
    bars: Sequence[tuple[float, str, str]]
    strong: bool = False


def bars_drawing(rows: Sequence[BarRow], width: float, *, most: float) -> Drawing:
    """A drawing of rows with bars. `most`: the value of a bar of full length."""
    label_width = widest([row.label for row in rows]) + _SIDE
    figure_width = widest([text for row in rows for _, _, text in row.bars]) + _SIDE
    above = label_width > _MOST_LABEL * width
    left = 0.0 if above else label_width
    full = max(20.0, width - left - figure_width)
    drawing = Drawing(width, 0.0)
    y = 2.0
    for row in rows:
        look = "strong" if row.strong else ""
        height = len(row.bars) * (_BAR + 3) - 3
        if above:
            drawing.text(look, (0, y + 11), fitting(row.label, width))
            y += _LINE
        else:
            drawing.text(look, (0, y + height / 2 + 4), row.label)
        for value, style, text in row.bars:
            drawing.box("track", (left, y), full, _BAR)
            drawing.box(style, (left, y), full * min(max(value / most, 0.0), 1.0), _BAR)
            drawing.text(look, (width, y + 10.5), text, anchor="end")
            y += _BAR + 3
        y += _GAP - 3
    drawing.height = y
    return drawing


def legend(drawing: Drawing, names: Sequence[tuple[str, str]], *, tag: str = "box") -> None:
    """Adds a legend below the drawing: a mark and a name for each (style class, name)."""
    x, y = 0.0, drawing.height + 12
    for look, name in names:
        if x and x + 18 + text_width(name) > drawing.width:
            x, y = 0.0, y + _LINE
        if tag == "dot":
            drawing.dot(look, (x + 5, y - 4))
        else:
            drawing.box(look, (x, y - 9), 10, 10)
        drawing.text("quiet", (x + 16, y), name)
        x += 34 + text_width(name)
    drawing.height = y + 6


_ROW: Final = 22
_ROW_ABOVE: Final = 38  # with the label above its dot
_EFFECTS_SIDE: Final = 10
_EFFECTS_MOST_LABEL: Final = 0.42
_TICKS: Final = (0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
_TICK_ROOM: Final = 34
_NOTE: Final = (
    "Time with the other value / time with the value of this trial: right of 1, this trial's value "
    "is the faster one. Lines are 95% intervals."
)


def effects_picture(effects: Sequence[Effect]) -> Picture | None:
    """A picture of the effects with a known worth, in their order; None without any."""
    shown = [effect for effect in effects if effect.worth]
    if not shown:
        return None
    said = "; ".join(f"{choice_text(e)} {worth_text(e)}, {e.basis}" for e in shown)
    return Picture(
        title="Worth of its choices",
        alternative=f"Worth of its choices: {said}.",
        wide=_drawing(shown, WIDE),
        narrow=_drawing(shown, NARROW),
        note=_NOTE,
    )


def choice_text(effect: Effect) -> str:
    return f"{effect.parameter}={wording.value_text(effect.to)} over {other_text(effect)}"


def worth_text(effect: Effect) -> str:
    interval = ""
    if effect.low is not None and effect.high is not None:
        interval = f" [{effect.low:.2f}, {effect.high:.2f}]"
    return f"{effect.worth:.2f}x{interval}"


def _drawing(effects: Sequence[Effect], width: float) -> Drawing:
    labels = [choice_text(effect) for effect in effects]
    figures = [worth_text(effect) for effect in effects]
    label_width, figure_width = (
        widest(labels) + _EFFECTS_SIDE,
        widest(figures) + _EFFECTS_SIDE,
    )
    above = label_width > _EFFECTS_MOST_LABEL * width or label_width + figure_width > 0.7 * width
    left, right = (6.0, width - 6) if above else (label_width + 6, width - figure_width - 6)
    row = _ROW_ABOVE if above else _ROW
    low, high = _bounds(effects)
    span = math.log(high / low)

    def place(value: float) -> float:
        return left + (right - left) * math.log(min(max(value, low), high) / low) / span

    bottom = row * len(effects) + 4.0
    drawing = Drawing(width, bottom + 18)
    last, one = -math.inf, place(1.0)
    for tick in (tick for tick in _TICKS if low <= tick <= high):
        x = place(tick)
        drawing.line("one" if tick == 1.0 else "grid", (x, 0), (x, bottom))
        if tick == 1.0 or (x - last >= _TICK_ROOM and abs(x - one) >= _TICK_ROOM):
            drawing.text("quiet", (x, bottom + 14), f"{tick:g}x", anchor="middle")
            last = x
    for at, (effect, label, figure) in enumerate(zip(effects, labels, figures, strict=True)):
        y = row * at + row / 2
        if above:
            y = row * at + 28
            drawing.text("", (0, y - 14), fitting(label, width - figure_width))
            drawing.text("", (width, y - 14), figure, anchor="end")
        else:
            drawing.text("", (0, y + 4), label)
            drawing.text("", (width, y + 4), figure, anchor="end")
        if effect.low is not None and effect.high is not None:
            drawing.line(effect.basis, (place(effect.low), y), (place(effect.high), y))
        drawing.dot(effect.basis, (place(effect.worth or 1.0), y), 4.5)
    used = [(basis, name) for basis, name in BASES.items() if basis in {e.basis for e in effects}]
    legend(drawing, used, tag="dot")
    return drawing


def _bounds(effects: Sequence[Effect]) -> tuple[float, float]:
    """The least and the greatest value on the axis. An interval counts only up to five times its
    worth, so that a few noisy trials do not compress all others."""
    values = [1.0]
    for effect in effects:
        worth = effect.worth or 1.0
        values += [worth, max(effect.low or worth, worth / 5), min(effect.high or worth, worth * 5)]
    return min(values) / 1.08, max(values) * 1.08


Place: TypeAlias = tuple[float, float]

_LEFT: Final = 58  # room for the figures of the vertical axis
_BOTTOM: Final = 40
_TOP: Final = 12
_RIGHT: Final = 8
_LABEL: Final = 13  # the height of a label
_NEIGHBOURS: Final = 60  # dots this close have their names beside them
_FAR_ABOVE: Final = 3.0  # a level line so much above all FLOP ceilings holds nothing
_ROOFLINE_NOTE: Final = (
    "A dot on a line is a kernel that this part of the device limits. Bandwidths are diagonals. "
    "Lines of MUFU, issue slots and launches lie where this kernel's own exponentials, "
    "instructions and launches would saturate them."
)


# The roofline as a picture: FLOP/s over FLOP/byte on log axes, ceilings, the kernel below them.
#
# A memory's bandwidth is a diagonal, a unit's rate is level. Units that do not count FLOP (MUFU,
# issue slots, launches) are level too: at the FLOP/s at which this kernel's own exponentials,
# instructions or launches would fill them. After Williams, Waterman and Patterson, "Roofline"
# (2009); one dot for each memory whose bytes are known, as in hierarchical rooflines.
@dataclass(frozen=True, slots=True)
class Ceiling:
    """A ceiling of the roofline. `rate`: FLOP/s, or bytes/s of a memory (`per_byte`). `holds`:
    whether it is the limiter's."""

    name: str
    rate: float
    per_byte: bool
    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class _Plot:
    """Places on the drawing of values on the log axes, from `least` to `most` in both directions:
    (FLOP/byte, FLOP/s)."""

    width: float
    height: float
    least: tuple[float, float]
    most: tuple[float, float]

    @property
    def right(self) -> float:
        return self.width - _RIGHT

    @property
    def bottom(self) -> float:
        return self.height - _BOTTOM

    def x(self, value: float) -> float:
        share = math.log(value / self.least[0]) / math.log(self.most[0] / self.least[0])
        return _LEFT + (self.right - _LEFT) * share

    def y(self, value: float) -> float:
        share = math.log(value / self.least[1]) / math.log(self.most[1] / self.least[1])
        return _TOP + (self.bottom - _TOP) * (1 - share)


def roofline_picture(roofline: Roofline, label: str, limiter: str) -> Picture | None:
    """The picture of the roofline; None if no operations or no ceilings are known. `label`: the
    kernel's name."""
    if roofline.operations <= 0 or roofline.time_us <= 0:
        return None
    flops = roofline.operations / (roofline.time_us * 1e-6)
    ceilings = ceilings_of_picture(roofline, limiter)
    dots = _dots(roofline)
    if not ceilings or not dots:
        return None
    own = f"{label}: {wording.rate_text(flops, 'FLOP/s')}"
    named = ", ".join(f"{ceiling.name} {ceiling.text}" for ceiling in ceilings)
    at = ", ".join(
        f"{intensity:.3g} FLOP/byte" + (f" of {name}" if name else "") for name, intensity in dots
    )
    time = wording.time_text(roofline.time_us)
    return Picture(
        title=f"Roofline on {roofline.case}, against {_kind(roofline)} ceilings",
        alternative=f"Roofline. {own} ({time}) at {at}. Ceilings: {named}.",
        wide=_roofline_drawing(own, flops, dots, ceilings, WIDE),
        narrow=_roofline_drawing(own, flops, dots, ceilings, NARROW),
        note=_ROOFLINE_NOTE,
    )


def ceilings_of_picture(roofline: Roofline, limiter: str) -> list[Ceiling]:
    """The ceilings that can limit the kernel, the highest first; bandwidths last."""
    holding = limiter.split(" + ")
    found = []
    for unit in roofline.units:
        per_byte = unit.unit == "bytes/s"
        rate = unit.rate if per_byte else _flops_of(unit, roofline)
        if rate:
            text = wording.rate_text(unit.rate or rate, unit.unit)
            found.append(Ceiling(unit.name, rate, per_byte, text, unit.name in holding))
    level = [ceiling for ceiling in found if not ceiling.per_byte]
    highest = max((c.rate for c in level if c.text.endswith("FLOP/s")), default=math.inf)
    level = [c for c in level if c.rate <= _FAR_ABOVE * highest or c.holds]
    level.sort(key=lambda ceiling: -ceiling.rate)
    bandwidths = [ceiling for ceiling in found if ceiling.per_byte]
    return [*level, *sorted(bandwidths, key=lambda ceiling: -ceiling.rate)]


def _kind(roofline: Roofline) -> str:
    return "measured" if roofline.ceilings == "measured" else "published"


def _flops_of(unit: Unit, roofline: Roofline) -> float | None:
    """The FLOP/s at which the kernel fills this unit, which may compute exponentials in addition to
    the problem's operations; None if its work there is not known, as that of tensor cores in a
    kernel without products."""
    if not unit.rate or not unit.work:
        return None
    if unit.unit == "FLOP/s" and unit.work <= roofline.operations:
        return unit.rate
    return roofline.operations * unit.rate / unit.work


def _dots(roofline: Roofline) -> list[tuple[str, float]]:
    """(memory, FLOP/byte) for each memory whose bytes are known; else by the problem's bytes."""
    found = [
        (unit.name, roofline.operations / unit.work)
        for unit in roofline.units
        if unit.unit == "bytes/s" and unit.work and unit.rate
    ]
    if not found and roofline.intensity > 0:
        found = [("", roofline.intensity)]
    return sorted(found, key=lambda dot: dot[1])


def _roofline_drawing(
    own: str,
    flops: float,
    dots: Sequence[tuple[str, float]],
    ceilings: Sequence[Ceiling],
    width: float,
) -> Drawing:
    plot = _plot(flops, dots, ceilings, width)
    drawing = Drawing(plot.width, plot.height)
    _axes(drawing, plot)
    _ceilings(drawing, plot, flops, ceilings)
    _gaps(drawing, plot, flops, dots, ceilings)
    _kernel(drawing, plot, own, flops, dots)
    return drawing


def _plot(
    flops: float, dots: Sequence[tuple[str, float]], ceilings: Sequence[Ceiling], width: float
) -> _Plot:
    level = [ceiling.rate for ceiling in ceilings if not ceiling.per_byte]
    bandwidths = [ceiling.rate for ceiling in ceilings if ceiling.per_byte]
    ridges = [max(level) / rate for rate in bandwidths] if level else []
    across = [*(intensity for _, intensity in dots), *ridges]
    up = [flops, *level]
    if not level:
        up += [intensity * rate for _, intensity in dots for rate in bandwidths]
    return _Plot(
        width,
        330 if width > NARROW else 290,
        (min(across) / 4, min(up) / 3),
        (max(max(across) * 4, *(10 * ridge for ridge in ridges), 0.0), max(up) * 1.6),
    )


def _ticks(least: float, most: float) -> list[float]:
    """Powers of ten; with few of them also their double and fivefold."""
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    steps = (1.0, 2.0, 5.0) if math.log10(most / least) < 2 else (1.0,)
    found = [step * 10.0**exponent for exponent in range(first, last) for step in steps]
    return [tick for tick in found if least <= tick <= most]


def _axes(drawing: Drawing, plot: _Plot) -> None:
    bottom, right = plot.bottom, plot.right
    for tick in _ticks(plot.least[0], plot.most[0]):
        x = plot.x(tick)
        drawing.line("grid", (x, _TOP), (x, bottom))
        text = f"{tick:g}" if 0.001 <= tick < 1e6 else f"{tick:.0e}"
        anchor: Literal["end", "middle"] = "end" if x > right - 14 else "middle"
        drawing.text("quiet", (x, bottom + 15), text, anchor=anchor)
    for tick in _ticks(plot.least[1], plot.most[1]):
        y = plot.y(tick)
        drawing.line("grid", (_LEFT, y), (right, y))
        drawing.text("quiet", (_LEFT - 6, y + 4), wording.rate_text(tick, ""), anchor="end")
    drawing.line("axis", (_LEFT, bottom), (right, bottom))
    drawing.line("axis", (_LEFT, _TOP), (_LEFT, bottom))
    drawing.text("quiet", ((_LEFT + right) / 2, plot.height - 6), "FLOP/byte", anchor="middle")
    middle = (_TOP + bottom) / 2
    drawing.text("quiet", (11, middle), "FLOP/s", anchor="middle", turned=-90.0)


def _ceilings(drawing: Drawing, plot: _Plot, flops: float, ceilings: Sequence[Ceiling]) -> None:
    level = [ceiling for ceiling in ceilings if not ceiling.per_byte]
    bandwidths = [ceiling for ceiling in ceilings if ceiling.per_byte]
    top = max((ceiling.rate for ceiling in level), default=plot.most[1])
    for ceiling in bandwidths:
        entry, ridge = _diagonal(plot, ceiling, top)
        drawing.line(_look(ceiling), entry, ridge)
    for ceiling in level:
        start = max((ceiling.rate / each.rate for each in bandwidths[:1]), default=plot.least[0])
        x, y = plot.x(min(max(start, plot.least[0]), plot.most[0])), plot.y(ceiling.rate)
        drawing.line(_look(ceiling), (x, y), (plot.right, y))
    # Names after all lines, so that no line crosses one.
    _level_names(drawing, plot, level)
    upper = plot.y(flops) > (_TOP + plot.bottom) / 2
    for place, ceiling in enumerate(bandwidths):
        ends = _diagonal(plot, ceiling, top)
        _bandwidth_name(drawing, plot, ceiling, ends, place=place, upper=upper)


def _diagonal(plot: _Plot, bandwidth: Ceiling, top: float) -> tuple[Place, Place]:
    """The ends of the line of a bandwidth: where it enters the plot, and where it meets the highest
    level line, `top`.
    """
    start = max(plot.least[0], plot.least[1] / bandwidth.rate)
    end = max(start, min(plot.most[0], top / bandwidth.rate))
    return (
        (plot.x(start), plot.y(start * bandwidth.rate)),
        (plot.x(end), plot.y(end * bandwidth.rate)),
    )


def _level_names(drawing: Drawing, plot: _Plot, level: Sequence[Ceiling]) -> None:
    """The names stand at the right end, above the line, or below it if the previous name is too
    close."""
    last = -math.inf
    for ceiling in level:
        y = plot.y(ceiling.rate)
        y = y - 4 if y - 4 >= last + _LABEL else max(y + _LABEL, last + _LABEL)
        drawing.text(_ink(ceiling), (plot.right - 2, y), _name(plot, ceiling), anchor="end")
        last = y


def _bandwidth_name(
    drawing: Drawing,
    plot: _Plot,
    ceiling: Ceiling,
    ends: tuple[Place, Place],
    *,
    place: int,
    upper: bool,
) -> None:
    """Along the diagonal, at its `upper` end if the kernel is in the lower half of the plot. The
    names of neighbours are shifted, each by its `place`."""
    (x0, y0), (x1, y1) = ends
    length = math.hypot(x1 - x0, y1 - y0)
    text = _name(plot, ceiling)
    if text_width(text) + 24 > length:
        text = ceiling.name
    if text_width(text) > length:
        return
    turned = -math.degrees(math.atan2(y0 - y1, x1 - x0))
    along = 12.0 + 14.0 * place
    share = (length - along if upper else along) / length
    x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
    side = math.radians(turned + 90)
    off = 5.0
    if upper and x - text_width(text) * math.cos(math.radians(turned)) - 12 < _LEFT:
        off = -14.0  # below the line: above it there is the axis
    at = (x - off * math.cos(side), y - off * math.sin(side))
    drawing.text(_ink(ceiling), at, text, anchor="end" if upper else "start", turned=turned)


def _name(plot: _Plot, ceiling: Ceiling) -> str:
    """The name, with its figure if there is room."""
    return f"{ceiling.name} {ceiling.text}" if plot.width > NARROW else ceiling.name


def _gaps(
    drawing: Drawing,
    plot: _Plot,
    flops: float,
    dots: Sequence[tuple[str, float]],
    ceilings: Sequence[Ceiling],
) -> None:
    """Lines from the kernel up to the ceilings that hold it."""
    for ceiling in (ceiling for ceiling in ceilings if ceiling.holds):
        named = [dot for dot in dots if dot[0] == ceiling.name]
        _, intensity = named[0] if named else dots[0]
        reached = ceiling.rate * (intensity if ceiling.per_byte else 1.0)
        if flops < reached <= plot.most[1] and (named or not ceiling.per_byte):
            x = plot.x(intensity)
            drawing.line("gap", (x, plot.y(flops)), (x, plot.y(reached)))


def _kernel(
    drawing: Drawing, plot: _Plot, own: str, flops: float, dots: Sequence[tuple[str, float]]
) -> None:
    y = plot.y(flops)
    places = [plot.x(intensity) for _, intensity in dots]
    for x in places:
        drawing.dot("kernel", (x, y))
    below = y + 18
    if len(dots) > 1:
        apart = min(right - left for left, right in itertools.pairwise(places))
        for at, ((name, _), x) in enumerate(zip(dots, places, strict=True)):
            if apart >= _NEIGHBOURS:
                drawing.text("quiet", (x, below - 2), name, anchor="middle")
            elif at == 0:
                drawing.text("quiet", (x - 9, y + 4), name, anchor="end")
            elif at == len(dots) - 1:
                drawing.text("quiet", (x + 9, y + 4), name)
        below += 13 if apart >= _NEIGHBOURS else 2
    half = text_width(own) / 2
    centre = min(max(sum(places) / len(places), _LEFT + half + 4), plot.right - half)
    drawing.text("strong", (centre, below), own, anchor="middle")


def _look(ceiling: Ceiling) -> str:
    return "holds" if ceiling.holds else "ceiling"


def _ink(ceiling: Ceiling) -> str:
    return "holds" if ceiling.holds else "quiet"
