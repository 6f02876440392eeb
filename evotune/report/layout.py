"""Lines of text for a given width: paragraphs with a hanging indent, and grids.

A line is a row of spans. A span names its role, not its colour, so the layout is the same with
colours and without. Every text is made `printable` here.
"""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from evotune.util.words import printable

_GAP = "  "
_LEAST_TEXT = 20  # columns a paragraph keeps beside its indent, however narrow the screen


class Role(enum.StrEnum):
    """Role of a piece of text; the medium decides on a colour."""

    PLAIN = "plain"
    TITLE = "title"
    QUIET = "quiet"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Span:
    text: str
    role: Role = Role.PLAIN


Line: TypeAlias = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """Heading lines, which stand on the grid's rule, and a cell for each row."""

    heading: tuple[str, ...]
    cells: tuple[Span, ...]
    right: bool = True

    @property
    def width(self) -> int:
        texts = (*self.heading, *(cell.text for cell in self.cells))
        return max(len(printable(text)) for text in texts)


def paragraph(
    text: str, width: int, *, label: str = "", indent: int = 2, role: Role = Role.PLAIN
) -> list[Line]:
    """`label` and `text` wrapped between words; lines after the first start at `indent`."""
    wrapped = textwrap.wrap(
        printable(text),
        max(width, indent + _LEAST_TEXT),
        initial_indent=printable(label),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )
    return [(Span(line, role),) for line in wrapped or [printable(label).rstrip()]]


def grid(columns: Sequence[Column]) -> list[Line]:
    """Headings, a rule, and the rows; as wide as `grid_width` says, however wide the screen."""
    height = max(len(column.heading) for column in columns)
    headings = [
        tuple(Span(text, Role.TITLE) for text in ("",) * (height - len(column.heading)))
        + tuple(Span(text, Role.TITLE) for text in column.heading)
        for column in columns
    ]
    return [
        *(_row(columns, line) for line in zip(*headings, strict=True)),
        (Span("─" * grid_width(columns), Role.QUIET),),
        *(_row(columns, line) for line in zip(*(c.cells for c in columns), strict=True)),
    ]


def grid_width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def plain(lines: Sequence[Line]) -> str:
    """The lines as text, without trailing blanks."""
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines)


def _row(columns: Sequence[Column], cells: Sequence[Span]) -> Line:
    spans: list[Span] = []
    for column, cell in zip(columns, cells, strict=True):
        text = printable(cell.text)
        padding = Span(" " * (column.width - len(text)))
        spans += (
            [padding, Span(text, cell.role)] if column.right else [Span(text, cell.role), padding]
        )
        spans.append(Span(_GAP))
    while spans and not spans[-1].text.strip():
        spans.pop()
    return tuple(spans)
