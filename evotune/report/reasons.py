"""Groups failures by reason: reasons that differ only in numbers are one, with an example."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_NUMBER = re.compile(r"\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Reason:
    """The number of `trials` that ended in `kind` for a reason like `example`, the first one."""

    kind: str
    example: str
    trials: int


def alike_reasons(failures: Iterable[tuple[str, str]]) -> list[Reason]:
    """Groups (kind, reason) of each failed trial; the most frequent come first."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for (kind, reason), count in Counter(failures).items():
        pattern = (kind, _NUMBER.sub("#", reason))
        counts[pattern] += count
        examples.setdefault(pattern, reason)
    return [Reason(key[0], examples[key], count) for key, count in counts.most_common()]
