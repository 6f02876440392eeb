"""The conditions of `compare --fail-if`: `median>3%`, a figure, a comparison, a percentage.

median   how much slower the second candidate is: the median over the cases
mean     the same, as the geometric mean over the cases
worst    the same, in the case that lost most
sure     how much slower it is even at the end of the interval that favours it
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from evotune.errors import UsageError

FIGURES = ("median", "mean", "worst", "sure")
_FORM = re.compile(r"\s*([a-z]+)\s*(>=|>)\s*(\d{1,6}(?:\.\d{1,6})?)\s*%\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Condition:
    """`share` is the percentage / 100."""

    figure: str
    sign: str
    share: float
    text: str

    def holds(self, slowdowns: Mapping[str, float]) -> bool:
        """Whether the condition holds. UsageError when the figure is unknown: `sure` needs
        intervals."""
        if self.figure not in slowdowns:
            raise UsageError(
                f"--fail-if {self.text}: these figures have no interval; add --remeasure"
            )
        found = slowdowns[self.figure]
        return found >= self.share if self.sign == ">=" else found > self.share


def parse_condition(text: str) -> Condition:
    """The condition in `text`; UsageError, which names the expected form, for any other text."""
    found = _FORM.fullmatch(text)
    if found is None or found[1] not in FIGURES:
        raise UsageError(
            f"--fail-if {text!r}: expected FIGURE>NUMBER%, as in median>3%; "
            f"FIGURE is {', '.join(FIGURES[:-1])} or {FIGURES[-1]}"
        )
    return Condition(found[1], found[2], float(found[3]) / 100, text.strip())
