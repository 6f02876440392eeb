"""Pictures of a page: SVG without a script, which takes its colours from the page.

A picture is data: shapes with numbers, the names of style classes, and texts. `figure_html` writes
it as markup with every text escaped; `picture_json` is for a page whose script makes the elements
(`pictures.js`). Each picture is drawn in two widths, and the page shows the one that fits, because
scaled-down text is unreadable on a phone.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final, Literal, TypeAlias

from evotune.trial import Json
from evotune.util.words import printable

Tag: TypeAlias = Literal["line", "rect", "circle", "text"]

WIDE: Final = 540
"""The width of a drawing on a desktop's screen, in pixels."""
NARROW: Final = 330
"""The width of a drawing on a phone."""
_SMALL, _CAPITAL = 7.1, 8.8  # the mean widths of characters, in the widest of the usual fonts


@dataclass(frozen=True, slots=True)
class Shape:
    """An SVG element. `look`: its style class in `pictures.css`; `at`: its attributes."""

    tag: Tag
    look: str
    at: Mapping[str, float | str]
    text: str = ""


@dataclass(slots=True)
class Drawing:
    """Shapes in the order of painting, on an area of `width` x `height` pixels."""

    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def line(self, look: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        (x1, y1), (x2, y2) = start, end
        self.shapes.append(Shape("line", look, {"x1": x1, "y1": y1, "x2": x2, "y2": y2}))

    def box(self, look: str, corner: tuple[float, float], width: float, height: float) -> None:
        """Adds a rectangle. `corner`: the upper left corner."""
        at = {"x": corner[0], "y": corner[1], "width": max(width, 0.0), "height": height, "rx": 2}
        self.shapes.append(Shape("rect", look, at))

    def dot(self, look: str, centre: tuple[float, float], radius: float = 5) -> None:
        self.shapes.append(Shape("circle", look, {"cx": centre[0], "cy": centre[1], "r": radius}))

    def text(
        self,
        look: str,
        place: tuple[float, float],
        text: str,
        *,
        anchor: Literal["start", "middle", "end"] = "start",
        turned: float = 0.0,
    ) -> None:
        """Adds a line of text. `place`: the point of its base line at which `anchor` (start, middle
        or end) lies. `turned`: degrees clockwise.
        """
        x, y = place
        at: dict[str, float | str] = {"x": x, "y": y, "text-anchor": anchor}
        if turned:
            at["transform"] = f"rotate({turned:.1f} {x:.1f} {y:.1f})"
        self.shapes.append(Shape("text", look, at, text))


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a page. `title`: the heading above it. `note`: a sentence below it that says how
    to read it. `alternative`: its content in words, for readers who cannot see it."""

    title: str
    alternative: str
    wide: Drawing
    narrow: Drawing
    note: str = ""


def picture_style() -> str:
    """The style sheet. It needs the custom properties of `report.css`, or has its own defaults."""
    asset = files("evotune.report.html").joinpath("assets", "pictures.css")
    return asset.read_text(encoding="utf-8")


def figure_html(picture: Picture) -> str:
    """A figure element with its heading and its note."""
    parts = [f"<h4>{_escaped(picture.title)}</h4>"]
    for size, drawing in _sizes(picture):
        shapes = "".join(_element(shape) for shape in drawing.shapes)
        parts.append(
            f'<svg class="{size}" role="img" aria-label="{_escaped(picture.alternative)}" '
            f'viewBox="0 0 {drawing.width:g} {drawing.height:g}">{shapes}</svg>'
        )
    if picture.note:
        parts.append(f"<figcaption>{_escaped(picture.note)}</figcaption>")
    return f'<figure class="evotune-picture">{"".join(parts)}</figure>'


def picture_json(picture: Picture) -> dict[str, Json]:
    """The picture as JSON for `pictures.js`, with every text `printable`."""
    return {
        "title": printable(picture.title),
        "note": printable(picture.note),
        "alternative": printable(picture.alternative),
        "drawings": [
            {
                "size": size,
                "width": drawing.width,
                "height": drawing.height,
                "shapes": [
                    [shape.tag, shape.look, _rounded(shape.at), printable(shape.text)]
                    for shape in drawing.shapes
                ],
            }
            for size, drawing in _sizes(picture)
        ],
    }


def fitting(text: str, width: float) -> str:
    """The text, cut to the part that fits `width` pixels."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) + _CAPITAL > width:
        text = text[:-1]
    return f"{text}…"


def text_width(text: str) -> float:
    """An estimate of a text's width in pixels."""
    capitals = sum(character.isupper() or character in "_%=mw" for character in text)
    return _CAPITAL * capitals + _SMALL * (len(text) - capitals)


def widest(texts: Sequence[str]) -> float:
    """The width of the longest of the texts, in pixels."""
    return max(map(text_width, texts), default=0.0)


def _sizes(picture: Picture) -> Iterator[tuple[str, Drawing]]:
    yield "wide", picture.wide
    yield "narrow", picture.narrow


def _element(shape: Shape) -> str:
    attributes = "".join(
        f' {name}="{_escaped(str(value))}"' for name, value in _rounded(shape.at).items()
    )
    return f'<{shape.tag} class="{shape.look}"{attributes}>{_escaped(shape.text)}</{shape.tag}>'


def _rounded(attributes: Mapping[str, float | str]) -> dict[str, float | str]:
    return {
        name: value if isinstance(value, str) else round(value, 1)
        for name, value in attributes.items()
    }


def _escaped(text: str) -> str:
    return html.escape(printable(text))
