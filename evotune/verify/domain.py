"""A champion's domain: the cases between the ones on which it was checked."""

from __future__ import annotations

import json
from collections.abc import Iterable

from evotune.device.profile import DeviceProfile
from evotune.problems.base import Case, Place, Problem
from evotune.trial import Domain, Region


def checked_domain(
    problem: Problem, checked: Iterable[tuple[str, Case]], profile: DeviceProfile
) -> Domain:
    """The domain of the cases that passed, each with its binary. Two binaries share no region,
    since no case between them was checked."""
    places: dict[tuple[str, str], list[Place]] = {}
    for binary, case in checked:
        place = problem.place(case)
        places.setdefault((binary, json.dumps(place.fixed, sort_keys=True)), []).append(place)
    return Domain(
        device=profile.name,
        multiprocessors=int(profile.attributes.get("multiprocessors", 0)),
        regions=tuple(map(_region, places.values())),
    )


def _region(places: list[Place]) -> Region:
    met = {name: [place.ranged[name] for place in places] for name in places[0].ranged}
    ranges = {name: (min(values), max(values)) for name, values in met.items()}
    return Region(dict(places[0].fixed), ranges, len(places))
