"""Long campaigns (`make soak`): many kills, many trials."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from .runs import (
    recorded_space,
    run_here,
)

pytestmark = pytest.mark.soak


def test_memory_and_files_stay_flat_over_a_whole_space_again_and_again(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space")
    run_here(space, tmp_path / "first", trials=2016)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(10):
        run_here(space, tmp_path / str(number), trials=2016)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    assert grown_mib < 50
    assert len(list(Path("/proc/self/fd").iterdir())) <= files
