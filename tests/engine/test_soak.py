"""Long campaigns (`make soak`): many kills, many trials."""

from __future__ import annotations

import random
import resource
import subprocess
from pathlib import Path

import pytest

from .runs import (
    digest,
    evotune,
    history,
    kill_when_stored,
    recorded_space,
    run_here,
    start_killable,
    stored,
)

pytestmark = pytest.mark.soak

KILLS = 60
TRIALS = 900


def test_a_run_killed_sixty_times_has_the_history_of_an_unbroken_one(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space", delay_ms=1.0)
    unbroken = run_here(space, tmp_path / "unbroken", trials=TRIALS)
    rng = random.Random(0)
    command: list[str | Path] = ["run", space, "--trials", str(TRIALS)]
    killed = 0
    for count in sorted(rng.sample(range(1, TRIALS - 40), KILLS)):
        process = start_killable(*command, "--runs-dir", tmp_path / "runs")
        run = kill_when_stored(process, tmp_path / "runs", count)
        killed += 1
        assert stored(run) >= count
        command = ["resume", run.path]
    subprocess.run(evotune("resume", run.path), check=True, capture_output=True, timeout=120)
    assert killed == KILLS
    assert digest(run) == digest(unbroken)
    assert history(run) == history(unbroken)


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
