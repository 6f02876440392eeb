"""Bars in rows, as a drawing: of units, of waits, of instructions, of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evotune.report.html.pictures import Drawing, fitting, text_width, widest

_LINE: Final = 16  # a line of text
_BAR: Final = 13
_GAP: Final = 8  # between rows
_SIDE: Final = 10  # between label, bar and figure
_MOST_LABEL: Final = 0.42  # of the width; a longer label stands above its bar


@dataclass(frozen=True, slots=True)
class BarRow:
    """A label with bars: (value, style class, its figure in words). `strong`: this row matters."""

    label: str
    bars: Sequence[tuple[float, str, str]]
    strong: bool = False


def bars_drawing(rows: Sequence[BarRow], width: float, *, most: float) -> Drawing:
    """`most`: the value of a bar of full length."""
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
    """Puts a line with a mark and a name for each (style class, name) below the drawing."""
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
