"""The checks of one configuration as a table's cells and as a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from evotune.report import wording
from evotune.trial import Check, Json, Outcome, Value

CHECK_COLUMNS = (*("case", "inputs", "status", "max error", "limit", "RMS error", "limit"),)
CHECK_NUMERIC = (False, False, False, True, True, True, True)


def check_cells(check: Check) -> tuple[str, ...]:
    """Cells in the order of CHECK_COLUMNS; `check_details` has further lines."""
    figures = (check.max_error, check.max_limit, check.rms_error, check.rms_limit)
    errors = (
        wording.NONE if figure is None or check.rounding else f"{figure:.1e}" for figure in figures
    )
    return (check.case, check.inputs, check.status, *errors)


def check_details(outcome: Outcome) -> list[str]:
    """`skipped: edge shapes, memcheck: not installed`: a line for each check with a detail."""
    return [
        f"{check.status}: {check.case}, {check.inputs}: {check.detail}"
        for check in outcome.checks
        if check.detail
    ]


def checks_text(outcome: Outcome) -> str:
    """`ok: 61 passed, 2 skipped`, or how the trial ended and why."""
    counts = Counter(check.status for check in outcome.checks)
    known = (status for status in ("passed", "failed", "skipped") if counts[status])
    found = ", ".join(f"{counts[status]} {status}" for status in known) or "no check was made"
    reason = f" ({outcome.reason})" if outcome.reason else ""
    return f"{outcome.kind.value}{reason}: {found}"


def verification_record(
    number: int | None, configuration: Mapping[str, Value], outcome: Outcome, *, passed: bool
) -> dict[str, Json]:
    """The record of one configuration in `verify --format json`."""
    return {
        "number": number,
        "configuration": dict(configuration),
        "passed": passed,
        "outcome": outcome.kind.value,
        "reason": outcome.reason,
        "checks": [check.to_json() for check in outcome.checks],
        "domain": None if outcome.domain is None else outcome.domain.to_json(),
    }
