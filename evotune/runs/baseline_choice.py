"""Chooses the baseline of a case among those that were timed."""

from __future__ import annotations

from collections.abc import Sequence

from evotune.problems.libraries import FAMILY, LIBRARIES
from evotune.problems.problem import Case
from evotune.space.document import SpaceDocument
from evotune.util.words import did_you_mean
from evotune.workers.executor import BaselineTiming


def chosen_baseline(document: SpaceDocument, case: Case, timings: Sequence[BaselineTiming]) -> str:
    """`family:best` is the fastest of the family that passes the gate itself, `best` the fastest of
    all; `library` is the family of optional libraries. Raises SpaceError if the case has no such
    baseline on this device, with the reason why each one is left out."""
    usable = [t for t in timings if t.case == case.label and t.passed]
    family, _, member = document.baseline.partition(":")
    if member == "best" and family == FAMILY:
        usable = [t for t in usable if t.name in LIBRARIES]
    elif member == "best":
        usable = [t for t in usable if t.name.startswith(f"{family}:")]
    elif family != "best":
        usable = [t for t in usable if t.name == document.baseline]
    if not usable:
        reasons = [
            t.reason or f"{t.name}: its outputs are not within the limits of the gate"
            for t in timings
            if t.case == case.label and not t.passed
        ]
        names = sorted({t.name for t in timings if t.case == case.label and t.passed})
        raise document.baseline_position.error(
            f"no baseline {document.baseline!r} for {case.label} on this device; "
            f"it has {', '.join(names) or 'none that fits its memory and is correct'}"
            + "".join(f"; {reason}" for reason in reasons)
        )
    return min(usable, key=lambda t: t.time_us).name


def require_baseline(document: SpaceDocument, names: Sequence[str]) -> None:
    """Raises SpaceError if `baseline:` is none of the problem's baselines on any device, nor the
    best of some. If no `names` are known, it may be any."""
    families = {name.partition(":")[0] for name in names if ":" in name}
    if LIBRARIES.keys() & set(names):
        families.add(FAMILY)
    known = {*names, "best", *(f"{family}:best" for family in families)}
    if names and document.baseline not in known:
        hint = did_you_mean(document.baseline, known)
        message = f"unknown baseline {document.baseline!r}{hint}"
        raise document.baseline_position.error(message)
