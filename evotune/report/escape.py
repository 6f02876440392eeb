"""Text that came from elsewhere (compilers, kernels, space files) made harmless for its reader.

A reason may hold terminal control sequences, spreadsheet formulas or table markup. JSON needs
nothing of this: `json.dumps` escapes what could act.
"""

from __future__ import annotations

import re
import unicodedata

_SPACES = {ord(char): " " for char in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}
_FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
# Control characters, invisible format characters (text direction too) and lone surrogates.
_DROPPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs"})


def printable(text: str) -> str:
    """One line without terminal control sequences; line breaks and tabs become spaces."""
    line = text.translate(_SPACES)
    if line.isascii() and line.isprintable():
        return line
    return "".join(char for char in line if unicodedata.category(char) not in _DROPPED_CATEGORIES)


def csv_text(text: str) -> str:
    """`printable`, with a leading `'` where a spreadsheet would read a formula."""
    line = printable(text)
    return f"'{line}" if line.lstrip().startswith(_FORMULA_STARTS) else line


def markdown_text(text: str) -> str:
    """`printable`, with Markdown's and HTML's marks shown as themselves, also in a table cell."""
    line = printable(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|`*_[]":
        line = line.replace(mark, f"\\{mark}")
    return line


def markdown_code(text: str) -> str:
    """`printable`, in a code span without escapes: for text that readers copy from the page."""
    line = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{fence}{line}{fence}"
