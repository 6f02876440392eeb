"""Runs that compile and measure for real, killed with everything that they started."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from workers.faulty import wait_until_gone

from evotune.runs.folder import RunFolder
from evotune.store import RunStore

from .crashing import CPU_CRASH_POINTS, Forker
from .killing import KILLED, kill_again_and_again, only_run
from .runs import history
from .test_cpu_run import SPACE, replayed

pytestmark = pytest.mark.soak
TRIALS = 12
KILLS = 40


@pytest.fixture
def forker(tmp_path: Path) -> Iterator[Forker]:
    (tmp_path / "tiny.yaml").write_text(SPACE)
    with Forker(tmp_path / "forker") as forker:
        yield forker


def test_killed_at_every_step_that_only_real_kernels_have(
    forker: Forker, tmp_path: Path, keep_result: Callable[..., None]
) -> None:
    runs = ("--runs-dir", tmp_path / "runs")
    command: tuple[object, ...] = ("run", tmp_path / "tiny.yaml", "--trials", 8)
    confirmed = {}
    for point in CPU_CRASH_POINTS:
        assert forker.run(*command, *runs, crash=point) == KILLED, forker.output()
        command = ("resume", "latest")
        run = only_run(tmp_path / "runs")
        assert run is not None
        assert not wait_until_gone(_work_of(run))
        with RunStore.open_for_reading(run.store) as store:
            assert set(forker.journaled("stored")) <= {trial.number for trial in store.trials()}
            assert store.confirmations().items() >= confirmed.items()
            confirmed = store.confirmations()
    assert len(confirmed) == 1
    assert forker.run(*command, *runs) == 0, forker.output()
    assert forker.journaled("stored") == [], "only champions were left to confirm"
    assert [trial.configuration for trial in history(run)] == replayed(run)
    keep_result(device="cpu", crash_points=len(CPU_CRASH_POINTS), lost=0, orphans=0)


def test_killed_forty_times_with_compilers_and_workers_at_work(
    forker: Forker, tmp_path: Path, keep_result: Callable[..., None]
) -> None:
    arguments = ("run", tmp_path / "tiny.yaml", "--trials", TRIALS, "--strategy", "random")
    keep = functools.partial(keep_result, device="cpu")
    kill_again_and_again(forker, arguments, tmp_path, KILLS, keep)


def _work_of(run: RunFolder) -> set[int]:
    """Processes whose standard error goes to the run's logs."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(run.logs) in os.readlink(entry / "fd" / "2"):
                found.add(int(entry.name))
        except OSError:
            continue
    return found
