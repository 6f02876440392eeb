"""Chooses the checks that a trial's record keeps."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

from evotune.backends.base.launch import DeviceProfile
from evotune.problems.executed_sizes import LengthPlan, band_pairs, executed_lengths
from evotune.problems.problem import CONTIGUOUS, Case, Place, Problem, distinct_broadcasts
from evotune.trial import ACCEPTED, Check, Domain, Region

ALL_KINDS = "all"
"""The name of the inputs in a check that stands for several kinds of inputs."""


def worth_keeping(checks: Sequence[Check], measured: Collection[str]) -> tuple[Check, ...]:
    """The checks to record. Of comparisons that passed, these are the nearest to its limit of each
    measured case, and one for all edge shapes. All other checks stay: summaries, skipped checks,
    findings of tools."""
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
    """True if the check judges outputs, on inputs of one kind."""
    judges = check.max_error is not None or check.detail == ACCEPTED
    return check.status == "passed" and judges and check.inputs != ALL_KINDS


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


# A champion's domain: the cases between the ones on which it was checked.


def checked_domain(
    problem: Problem,
    checked: Iterable[tuple[str, Case]],
    profile: DeviceProfile,
    lengths: Sequence[LengthPlan] = (),
    by_length: Collection[str] = (),
) -> Domain:
    """The domain of the cases that passed. `checked` has each case with its binary. Two binaries
    share no region, because no case between them was checked. `lengths`: the lengths that the cases
    of the binaries in `by_length` executed together."""
    places: dict[tuple[str, str], list[Place]] = {}
    layouts: set[str] = set()
    for binary, case in checked:
        place = problem.place(case)
        layouts.add(place.layout)
        places.setdefault((binary, json.dumps(place.fixed, sort_keys=True)), []).append(place)
    return Domain(
        device=profile.name,
        multiprocessors=int(profile.attributes.get("multiprocessors", 0)),
        regions=tuple(
            _region(each, lengths if binary in by_length else ())
            for (binary, _), each in places.items()
        ),
        layout=", ".join(sorted(layouts)) or CONTIGUOUS,
    )


def _region(places: list[Place], lengths: Sequence[LengthPlan]) -> Region:
    met = {name: [place.ranged[name] for place in places] for name in places[0].ranged}
    ranges = {name: (min(values), max(values)) for name, values in met.items()}
    own = [plan for plan in lengths if plan.fixed == places[0].fixed]
    return Region(
        dict(places[0].fixed),
        ranges,
        len(places),
        pairs=band_pairs(places),
        executed=executed_lengths(own, places) or None,
        mask_sizes=_mask_sizes(places),
    )


def _mask_sizes(places: list[Place]) -> tuple[str, ...]:
    return distinct_broadcasts(sorted({place.mask_sizes for place in places} - {""}))
