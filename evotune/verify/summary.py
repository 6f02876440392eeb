"""Chooses the checks that a trial's record keeps."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evotune.trial import Check

ALL_KINDS = "all"
"""The name of the inputs in a check that stands for several kinds of inputs."""


def worth_keeping(checks: Sequence[Check], measured: Collection[str]) -> tuple[Check, ...]:
    """The passed comparison nearest its limit for each measured case, and one for all edge shapes.
    All other checks stay: summaries, skipped ones, findings of tools."""
    compared = [check for check in checks if _compared(check)]
    groups: dict[str, list[Check]] = {}
    for check in compared:
        groups.setdefault(check.case if check.case in measured else "", []).append(check)
    kept = [nearest_limit(group) for group in groups.values()]
    return (*kept, *(check for check in checks if not _compared(check)))


def nearest_limit(checks: Sequence[Check]) -> Check:
    """The check that used the largest share of its error limits."""
    return max(checks, key=_closeness)


def _compared(check: Check) -> bool:
    """True if the check compares an output with a reference, on inputs of one kind."""
    return check.status == "passed" and check.max_error is not None and check.inputs != ALL_KINDS


def _closeness(check: Check) -> float:
    shares = [
        error / limit
        for error, limit in (
            (check.max_error, check.max_limit),
            (check.rms_error, check.rms_limit),
        )
        if error is not None and limit
    ]
    return max(shares, default=0.0)
