"""Text for people: counted nouns, and users' texts made harmless for a terminal or a page."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 GPU`, `2 GPUs`, `1,000 GPUs`. For nouns whose plural takes an s."""
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
    """The text as one line without terminal control sequences. Line breaks and tabs become
    spaces."""
    line = text.translate(_SPACES)
    if line.isascii() and line.isprintable():
        return line
    return "".join(char for char in line if unicodedata.category(char) not in _DROPPED_CATEGORIES)


def escaped_json(text: str) -> str:
    """JSON text in which the characters that `printable` drops or replaces are escaped."""
    return "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    if char == "\n" or unicodedata.category(char) not in _ESCAPED_CATEGORIES:
        return char
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"


def csv_text(text: str) -> str:
    """The `printable` text, with a leading `'` if a spreadsheet would read it as a formula."""
    line = printable(text)
    return f"'{line}" if line.lstrip().startswith(_FORMULA_STARTS) else line


def markdown_text(text: str) -> str:
    """The `printable` text with Markdown's and HTML's marks escaped, also for a table cell."""
    line = printable(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|`*_[]":
        line = line.replace(mark, f"\\{mark}")
    return line


def markdown_code(text: str) -> str:
    """The `printable` text in a code span without escapes, for text that readers copy from the
    page."""
    line = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{fence}{line}{fence}"


# Words for error messages: what was found, and what may have been meant.
def closest(word: str, known: Iterable[str]) -> str:
    """The hint `; did you mean 'x'?` with the closest known word; "" if none is close. For a word
    in capitals, such as a parameter, words in capitals come first, because a size may be equally
    close."""
    candidates = sorted(set(known))
    for group in ([each for each in candidates if each.isupper() == word.isupper()], candidates):
        folded = {candidate.lower(): candidate for candidate in group}
        close = difflib.get_close_matches(word.lower()[:80], folded, n=1, cutoff=0.6)
        if close:
            return f"; did you mean '{folded[close[0]]}'?"
    return ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The hint of `closest`, or `; known: a, b` if nothing is close and the list is short."""
    candidates = sorted(set(known))
    listed = ", ".join(candidates)
    fallback = f"; known: {listed}" if candidates and len(listed) <= 200 else ""
    return closest(word, candidates) or fallback


def shorten(text: str, limit: int = 60) -> str:
    """The text as one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


MOST_NAME = 200
_LONG = re.compile(rf"\S{{{MOST_NAME + 1},}}")


def shorten_names(text: str) -> str:
    """The text with each longer word, such as a name or a path, cut to 200 characters: its first
    and its last ones."""
    return _LONG.sub(lambda found: f"{found[0][: MOST_NAME - 50]}…{found[0][-49:]}", text)


def describe(found: object) -> str:
    """Describes a value of a YAML file in a few words."""
    if found is None:
        return "nothing"
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, dict):
        return "a mapping"
    if isinstance(found, list):
        return f"a list of {len(found)}"
    return shorten(repr(found))
