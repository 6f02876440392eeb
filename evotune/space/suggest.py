"""Words for error messages: what was found, and what may have been meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known word, empty when none is close. Of words in
    capitals, as parameters are, another one in capitals comes first: a size may be as close."""
    candidates = sorted(set(known))
    for group in ([each for each in candidates if each.isupper() == word.isupper()], candidates):
        folded = {candidate.lower(): candidate for candidate in group}
        close = difflib.get_close_matches(word.lower()[:80], folded, n=1, cutoff=0.6)
        if close:
            return f"; did you mean '{folded[close[0]]}'?"
    return ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`closest`, or `; known: a, b` when nothing is close and the list is short."""
    candidates = sorted(set(known))
    listed = ", ".join(candidates)
    fallback = f"; known: {listed}" if candidates and len(listed) <= 200 else ""
    return closest(word, candidates) or fallback


def shorten(text: str, limit: int = 60) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


MOST_NAME = 200
_LONG = re.compile(rf"\S{{{MOST_NAME + 1},}}")


def shorten_names(text: str) -> str:
    """The text, in which each word, as a name or a path, has at most 200 characters: the first and
    the last ones."""
    return _LONG.sub(lambda found: f"{found[0][: MOST_NAME - 50]}…{found[0][-49:]}", text)


def describe(found: object) -> str:
    """A value of a YAML file, in a few words."""
    if found is None:
        return "nothing"
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, dict):
        return "a mapping"
    if isinstance(found, list):
        return f"a list of {len(found)}"
    return shorten(repr(found))
