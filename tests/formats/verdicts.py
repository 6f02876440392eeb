"""Verdicts that nobody measured."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from evotune import Verdict
from evotune.report.leaderboard import figures
from evotune.trial import Check, Configuration, Measurement, Outcome, OutcomeKind


def passed(*labels: str, checks: tuple[Check, ...] = ()) -> Verdict:
    """The verdict on a kernel that is twice as fast in these cases."""
    measured = tuple(
        Measurement(label, 10.0, 9.0, "torch:eager", 20.0, 2.0, 1.9, 2.1, 100) for label in labels
    )
    return _verdict(
        Outcome(OutcomeKind.OK, fitness=math.log(2.0), measurements=measured, checks=checks)
    )


def refused(kind: OutcomeKind, reason: str, checks: tuple[Check, ...] = ()) -> Verdict:
    return _verdict(Outcome(kind, reason=reason, checks=checks))


def _verdict(outcome: Outcome) -> Verdict:
    given: dict[str, Any] = {
        "configuration": Configuration({"GATED": 1}),
        "outcome": outcome,
        "_figures": figures(outcome),
    }
    named = {field.name for field in dataclasses.fields(Verdict)}
    return Verdict(**{name: given.get(name, {}) for name in named})
