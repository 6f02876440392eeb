"""Words for people: counted nouns, and texts of users made harmless for a terminal or a page."""

from __future__ import annotations

import json
import re
import unicodedata


def counted(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`, `1,000 GPUs`; for nouns whose plural takes an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# Text that came from elsewhere (compilers, kernels, space files) made harmless for its reader.
#
# A name or a reason may hold terminal control sequences, spreadsheet formulas, HTML or table
# markup. JSON that `json.dumps` makes with its usual arguments has ASCII's printable characters
# only.
_SPACES = {ord(char): " " for char in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}
_FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
# Control characters, invisible format characters (text direction too) and lone surrogates.
_DROPPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs"})
_ESCAPED_CATEGORIES = _DROPPED_CATEGORIES | {"Zl", "Zp"}


def printable(text: str) -> str:
    """One line without terminal control sequences; line breaks and tabs become spaces."""
    line = text.translate(_SPACES)
    if line.isascii() and line.isprintable():
        return line
    return "".join(char for char in line if unicodedata.category(char) not in _DROPPED_CATEGORIES)


def escaped_json(text: str) -> str:
    """JSON text in which those characters that `printable` drops or replaces are escapes."""
    return "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    if char == "\n" or unicodedata.category(char) not in _ESCAPED_CATEGORIES:
        return char
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"


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
