"""The objectives of a search: figures of a valid outcome. For each, higher is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from evotune.trial import Check, Outcome

_UNCHECKED_SHARE: Final = 1.0  # the largest share of its limit that a passed check can have used


def worst_check(checks: Iterable[Check]) -> Check | None:
    """The check whose maximum error used the largest share of its limit. A failed check comes
    before a passed one. None when no check has a maximum error."""
    made = [check for check in checks if check.status != "skipped" and check.max_error is not None]
    if not made:
        return None
    return max(made, key=lambda check: (check.status == "failed", error_share(check)))


def error_share(check: Check) -> float:
    """The check's maximum error as a share of its limit; infinite when that is NaN."""
    error, limit = check.max_error or 0.0, check.max_limit
    share = error / limit if limit else error
    return math.inf if math.isnan(share) else share


def _speedup(outcome: Outcome) -> float:
    """ln of the speedup's geometric mean over the timed cases."""
    assert outcome.fitness is not None
    return outcome.fitness


def _accuracy(outcome: Outcome) -> float:
    """The negative share of its limit that the error used, in the check that used most."""
    check = worst_check(outcome.checks)
    return -(_UNCHECKED_SHARE if check is None else error_share(check))


OBJECTIVES: Final[Mapping[str, Callable[[Outcome], float]]] = {
    "speedup": _speedup,
    "error": _accuracy,
}
SINGLE: Final = ("speedup",)


def values(outcome: Outcome, objectives: Iterable[str]) -> tuple[float, ...]:
    """The figures of a valid outcome, in the order of `objectives`."""
    return tuple(OBJECTIVES[name](outcome) for name in objectives)
