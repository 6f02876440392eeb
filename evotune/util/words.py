"""Numbers with the nouns that they count."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`, `1,000 GPUs`; for nouns whose plural takes an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
