"""Plans for a Hopper GPU of any size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from evotune.backends.cuda import discovery, gpu_profiles
from evotune.runs import setup
from evotune.runs.planning import Planner


def planner_on(multiprocessors: int, space: Path) -> Planner:
    """The planner of a space for an H200 with this number of multiprocessors."""
    profile = gpu_profiles.named("h200")
    attributes = {**profile.attributes, "multiprocessors": multiprocessors}
    profile = dataclasses.replace(profile, attributes=attributes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "open_profile", lambda *_, **__: profile)
        planner = setup.load_setup(space, "h200", compile_only=True).planner
    assert planner is not None
    return planner
