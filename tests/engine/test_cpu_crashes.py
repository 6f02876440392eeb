"""Runs that compile and measure for real, killed with everything that they started."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from execute.faulty import descendants, wait_until_gone

from evotune.engine.folder import RunFolder, list_runs
from evotune.store import RunStore

from .crashing import CPU_CRASH_POINTS, Forker
from .runs import digest, history
from .test_cpu_run import SPACE, replayed

pytestmark = pytest.mark.soak
KILLED = -signal.SIGKILL
TRIALS = 12
KILLS = 40


@pytest.fixture
def forker(tmp_path: Path) -> Iterator[Forker]:
    (tmp_path / "tiny.yaml").write_text(SPACE)
    with Forker(tmp_path / "forker") as forker:
        yield forker


def _run(runs_dir: Path) -> RunFolder | None:
    return next(iter(list_runs(runs_dir)), None)


def test_killed_at_every_step_that_only_real_kernels_have(forker: Forker, tmp_path: Path) -> None:
    runs = ("--runs-dir", tmp_path / "runs")
    command: tuple[object, ...] = ("run", tmp_path / "tiny.yaml", "--trials", 8)
    confirmed = {}
    for point in CPU_CRASH_POINTS:
        assert forker.run(*command, *runs, crash=point) == KILLED, forker.output()
        command = ("resume", "latest")
        run = _run(tmp_path / "runs")
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


def test_killed_forty_times_with_compilers_and_workers_at_work(
    forker: Forker, tmp_path: Path, keep_result: Callable[..., None]
) -> None:
    """`random` proposes the same whatever is measured, so every run has one right history."""
    arguments = ("run", tmp_path / "tiny.yaml", "--trials", TRIALS, "--strategy", "random")
    started = time.monotonic()
    assert forker.run(*arguments, "--runs-dir", tmp_path / "unbroken") == 0, forker.output()
    whole_s = time.monotonic() - started
    unbroken = _run(tmp_path / "unbroken")
    assert unbroken is not None
    rng = random.Random(0)
    counts = {"kills": 0, "runs": 0, "whole_tree": 0, "parent_alone": 0, "processes_killed": 0}
    while counts["kills"] < KILLS:
        counts["runs"] += 1
        runs_dir = tmp_path / f"runs-{counts['runs']}"
        forker.cache = tmp_path / f"cache-{counts['runs']}"
        kept: list[object] = []
        status = KILLED
        while status == KILLED:
            run = _run(runs_dir)
            command = arguments if run is None else ("resume", "latest")
            session = forker.start(*command, "--runs-dir", runs_dir)
            if counts["kills"] < KILLS:
                time.sleep(rng.uniform(0.0, whole_s))
                below = descendants(session.pid)
                alone = rng.random() < 0.5
                counts["parent_alone" if alone else "whole_tree"] += 1
                counts["processes_killed"] += 1 + len(below)
                for pid in [session.pid, *(() if alone else below)]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                assert not wait_until_gone(below), "an orphan"
            status = session.finish()
            counts["kills"] += status == KILLED
            run = _run(runs_dir)
            now = history(run) if run is not None else []
            assert set(forker.journaled("stored")) <= {trial.number for trial in now}
            assert all(trial in now for trial in kept)
            kept = list(now)
        assert status == 0, forker.output()
        assert run is not None
        assert digest(run) == digest(unbroken)
        keep_result(device="cpu", **counts, lost=0, orphans=0, other_histories=0)


def _work_of(run: RunFolder) -> set[int]:
    """Processes whose words go to the run's logs."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(run.logs) in os.readlink(entry / "fd" / "2"):
                found.add(int(entry.name))
        except OSError:
            continue
    return found
