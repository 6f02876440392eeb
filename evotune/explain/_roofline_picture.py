"""The roofline as a picture: FLOP/s over FLOP/byte on log axes, ceilings, the kernel below them.

A memory's bandwidth is a diagonal, a unit's rate is level. Units that do not count FLOP (MUFU,
issue slots, launches) are level too: at the FLOP/s at which this kernel's own exponentials,
instructions or launches would fill them. After Williams, Waterman and Patterson, "Roofline" (2009);
one dot for each memory whose bytes are known, as in hierarchical rooflines.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from evotune.report import wording
from evotune.report.html.pictures import NARROW, WIDE, Drawing, Picture, text_width

if TYPE_CHECKING:
    from evotune.explain.explanation import Roofline, Unit

Place: TypeAlias = tuple[float, float]

_LEFT: Final = 58  # room for the figures of the vertical axis
_BOTTOM: Final = 40
_TOP: Final = 12
_RIGHT: Final = 8
_LABEL: Final = 13  # the height of a label
_NEIGHBOURS: Final = 60  # dots this close have their names beside them
_FAR_ABOVE: Final = 3.0  # a level line so much above all FLOP ceilings holds nothing
_NOTE: Final = (
    "A dot at a line is a kernel that this part of the device holds. Bandwidths are diagonals. "
    "Lines of MUFU, issue slots and launches stand where this kernel's own exponentials, "
    "instructions and launches would fill them."
)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """`rate`: FLOP/s, or bytes/s of a memory (`per_byte`). `holds`: the limiter's own."""

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
    """`label`: the kernel's name. None where no operations or no ceilings are known."""
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
        wide=_drawing(own, flops, dots, ceilings, WIDE),
        narrow=_drawing(own, flops, dots, ceilings, NARROW),
        note=_NOTE,
    )


def ceilings_of_picture(roofline: Roofline, limiter: str) -> list[Ceiling]:
    """The ceilings that can hold the kernel, the highest first; bandwidths last."""
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
    """The FLOP/s at which the kernel fills this unit, which may have exponentials to compute beside
    the problem's operations; None where its work there is not known, as
    that of tensor cores in a kernel without products."""
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


def _drawing(
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
    """Its ends: where it enters the plot, and where it meets the highest level line, `top`."""
    start = max(plot.least[0], plot.least[1] / bandwidth.rate)
    end = max(start, min(plot.most[0], top / bandwidth.rate))
    return (
        (plot.x(start), plot.y(start * bandwidth.rate)),
        (plot.x(end), plot.y(end * bandwidth.rate)),
    )


def _level_names(drawing: Drawing, plot: _Plot, level: Sequence[Ceiling]) -> None:
    """At the right end: above the line, or below it where the name before is too close."""
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
    """With its figure where there is room."""
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
