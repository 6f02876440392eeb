"""The worth of single choices as a picture: a dot with its 95% interval for each, on a log axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from evotune.explain._bars import legend
from evotune.explain._sentences import BASES, other_text
from evotune.report import wording
from evotune.report.html.pictures import NARROW, WIDE, Drawing, Picture, fitting, widest

if TYPE_CHECKING:
    from evotune.explain.explanation import Effect

_ROW: Final = 22
_ROW_ABOVE: Final = 38  # with the label above its dot
_SIDE: Final = 10
_MOST_LABEL: Final = 0.42
_TICKS: Final = (0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
_TICK_ROOM: Final = 34
_NOTE: Final = (
    "Time with the other value / time with the value of this trial: right of 1, this trial's value "
    "is the faster one. Lines are 95% intervals."
)


def effects_picture(effects: Sequence[Effect]) -> Picture | None:
    """The effects with a known worth, in their order; None without any."""
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
    label_width, figure_width = widest(labels) + _SIDE, widest(figures) + _SIDE
    above = label_width > _MOST_LABEL * width or label_width + figure_width > 0.7 * width
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
    """The least and the greatest value on the axis. An interval counts as far as five times its
    worth, so that one of a few noisy trials does not press all others together."""
    values = [1.0]
    for effect in effects:
        worth = effect.worth or 1.0
        values += [worth, max(effect.low or worth, worth / 5), min(effect.high or worth, worth * 5)]
    return min(values) / 1.08, max(values) * 1.08
