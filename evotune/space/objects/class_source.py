"""Makes a module of the source of one class and of all that it uses: `module_of_class`.

evotune's processes are separate from the caller's. They read a problem from a file, as a space file
names one, and never run the caller's script or notebook again. So the class is taken out of its
module: its source, the source of functions and classes that it uses, imports of modules, and
constants by their values.

If all of it comes from one file, each line keeps its number there, so that a message about
`script.py:17` means the caller's line 17.
"""

from __future__ import annotations

from pathlib import Path

from evotune.space.objects.gathering import Gatherer, Unusable
from evotune.space.objects.source_lines import Piece
from evotune.space.reading.yaml_source import Position

_FIRST = "from __future__ import annotations"
_ANY_NAME = "problem.py"


def module_of_class(kind: type, position: Position) -> tuple[str, str]:
    """(file name, text) of a module that defines the class.

    SpaceError at `position` for a class whose source cannot be read, and for a global that is
    neither a module, a function, a class nor a constant.
    """
    try:
        gatherer = Gatherer(kind)
    except Unusable as error:
        raise position.error(str(error)) from error
    first, pieces = [_FIRST, *gatherer.statements], gatherer.pieces
    if len({piece.file for piece in pieces}) == 1:
        pieces = sorted(pieces, key=lambda piece: piece.line)
        if pieces[0].line - pieces[0].is_indented > 1:
            return _file_name(pieces[0].file), _in_place(first, pieces)
    blocks = [f"# {piece.file}:{piece.line}\n{_at_the_margin(piece)}" for piece in pieces]
    return _ANY_NAME, "\n\n\n".join(["\n".join(first), *blocks]) + "\n"


def _file_name(file: str) -> str:
    """The name of the caller's file; `problem.py` for a notebook's cell, which has no such name."""
    path = Path(file)
    usable = path.suffix == ".py" and path.is_file() and path.stem.isidentifier()
    return path.name if usable else _ANY_NAME


def _at_the_margin(piece: Piece) -> str:
    """The piece as a top-level statement. An indented one goes under `if True:`, since moving it to
    the left would change the text inside its strings."""
    return f"if True:\n{piece.text}" if piece.is_indented else piece.text


def _in_place(first: list[str], pieces: list[Piece]) -> str:
    """The module's text: every piece at its own line of the file, the rest in the first line."""
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
