"""What a search can be for: figures of a valid outcome, each the better the higher it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from evotune.trial import Check, Outcome

_UNCHECKED_SHARE: Final = 1.0  # of the limit: the most that a valid outcome can have used


def worst_check(checks: Iterable[Check]) -> Check | None:
    """The check that used most of its limit on the maximum error; failed ones before passed."""
    made = [check for check in checks if check.status != "skipped" and check.max_error is not None]
    if not made:
        return None
    return max(made, key=lambda check: (check.status == "failed", error_share(check)))


def error_share(check: Check) -> float:
    """Its maximum error as a share of the limit; infinite when that is NaN."""
    error, limit = check.max_error or 0.0, check.max_limit
    share = error / limit if limit else error
    return math.inf if math.isnan(share) else share


def _speedup(outcome: Outcome) -> float:
    """ln of the geometric mean over the timed cases."""
    assert outcome.fitness is not None
    return outcome.fitness


def _accuracy(outcome: Outcome) -> float:
    """How far the error stays below its limit, in the check that came closest."""
    check = worst_check(outcome.checks)
    return -(_UNCHECKED_SHARE if check is None else error_share(check))


OBJECTIVES: Final[Mapping[str, Callable[[Outcome], float]]] = {
    "speedup": _speedup,
    "error": _accuracy,
}
SINGLE: Final = ("speedup",)


def values(outcome: Outcome, objectives: Iterable[str]) -> tuple[float, ...]:
    """Of a valid outcome, in the order of `objectives`."""
    return tuple(OBJECTIVES[name](outcome) for name in objectives)
