"""A module made of the source of one class and of what it uses: `module_of_class`.

evotune's processes are others than the caller's. They read a problem from a file, as a space file
names one, and never run the caller's script or notebook again. So the class is taken out of its
module: its source, the source of functions and classes that it uses, imports of modules, and
constants by their values.

Where all of it stands in one file, each line keeps its number there, so that a message about
`script.py:17` means the caller's line 17.
"""

from __future__ import annotations

from pathlib import Path

from evotune.space.objects.gathering import Gatherer, Unusable
from evotune.space.objects.source_lines import Piece
from evotune.space.reading.yaml_source import Position

_FIRST = "from __future__ import annotations"


def module_of_class(kind: type, position: Position) -> tuple[str, str]:
    """(file name, text) of a module that defines the class.

    SpaceError at `position` for a class whose source cannot be read, and for a global that is
    neither a module, a function, a class nor a constant.
    """
    try:
        gatherer = Gatherer(kind)
    except Unusable as error:
        raise position.error(str(error)) from error
    return _file_name(gatherer.pieces), _text(gatherer)


def _file_name(pieces: list[Piece]) -> str:
    """Of the caller's file if there is one; a cell of a notebook has no name to show."""
    path = Path(pieces[-1].file)
    usable = path.suffix == ".py" and path.is_file() and path.stem.isidentifier()
    return path.name if usable else "problem.py"


def _text(gatherer: Gatherer) -> str:
    """The imports and constants in the first line or lines, then the pieces."""
    first = [_FIRST, *gatherer.statements]
    pieces = gatherer.pieces
    if len({piece.file for piece in pieces}) == 1:
        pieces = sorted(pieces, key=lambda piece: piece.line)
        if pieces[0].line - pieces[0].is_indented > 1:
            return _in_place(first, pieces)
    blocks = ["\n".join(first)]
    blocks += [f"if True:\n{p.text}" if p.is_indented else p.text for p in pieces]
    return "\n\n\n".join(blocks) + "\n"


def _in_place(first: list[str], pieces: list[Piece]) -> str:
    """Every piece at the line where it stands in its file, the rest in the first line."""
    lines = ["; ".join(first)]
    before = None
    for piece in pieces:
        continues = piece.is_indented and before is not None and before.end == piece.line - 1
        if piece.is_indented and not continues:
            lines += [""] * (piece.line - 2 - len(lines))
            lines.append("if True:")
        lines += [""] * (piece.line - 1 - len(lines))
        lines += piece.text.split("\n")
        before = piece
    return "\n".join(lines) + "\n"
