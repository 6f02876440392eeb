"""Lengths of packed and of paged sequences on timed inputs, and how many scores they have."""

from __future__ import annotations

_SHORTEST = 1 / 128
"""Of the longest one, where lengths are geometric."""


def partition(lengths: str, sequences: int, tokens: int, longest: int) -> list[int]:
    """Lengths of at most `longest` that add up to `tokens`, longest first."""
    if lengths == "even":
        return [tokens // sequences + (n < tokens % sequences) for n in range(sequences)]
    found = [longest // n for n in range(1, sequences + 1)]
    missing = tokens - sum(found)
    for n in range(1, sequences):  # the later ones get or lose the rest
        place = n if missing > 0 else sequences - n
        by = max(-found[place], min(missing, longest - found[place]))
        found[place] += by
        missing -= by
    return sorted(found, reverse=True)


def paged_lengths(lengths: str, sequences: int, longest: int) -> list[int]:
    """The numbers of keys, longest first."""
    match lengths:
        case "even":
            return [longest] * sequences
        case "zipf":
            return [longest // n for n in range(1, sequences + 1)]
        case _:
            steps = max(1, sequences - 1)
            return [round(longest * _SHORTEST ** (n / steps)) for n in range(sequences)]


def visible(rows: int, keys: int, causal: bool) -> int:
    """The number of scores of a sequence that are not hidden."""
    if not causal:
        return rows * keys
    rows_seeing = min(rows, keys)  # the last ones; the last of them sees all keys
    return rows_seeing * keys - rows_seeing * (rows_seeing - 1) // 2
