"""Text of a package's files as a terminal may show it."""

from __future__ import annotations


def shown(text: str) -> str:
    """The text without characters that a terminal obeys: control sequences, the direction of text.
    Line breaks stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)
