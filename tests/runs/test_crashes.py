"""A run that is killed around any commit, or at any other moment, loses nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evotune.runs.folder import RunFolder, list_runs
from evotune.store import RunStore
from evotune.trial import Trial

from .crashing import BEFORE_THE_RUN_EXISTS, CRASH_POINTS, Forker
from .runs import digest, history, recorded_space, run_here

TRIALS = 70  # beyond the third snapshot
KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    with Forker(tmp_path_factory.mktemp("forker")) as forker:
        yield forker


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_space(tmp_path_factory.mktemp("space"))


@pytest.fixture(scope="module")
def unbroken(space: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_here(space, tmp_path_factory.mktemp("unbroken"), trials=TRIALS)


def _only_run(runs_dir: Path) -> RunFolder | None:
    runs = list_runs(runs_dir)
    assert len(runs) <= 1
    return runs[0] if runs else None


def _kept(run: RunFolder | None) -> dict[int, Trial]:
    return {} if run is None else {trial.number: trial for trial in history(run)}


def _check_acknowledged(
    forker: Forker, before: dict[int, Trial], run: RunFolder | None
) -> dict[int, Trial]:
    """Checks the store after a command: outcomes that it journaled are in it, outcomes from
    `before` are unchanged and were not tried again. Returns the trials that are in it now."""
    now = _kept(run)
    assert set(forker.journaled("stored")) <= now.keys(), "an acknowledged outcome was lost"
    assert {number: now.get(number) for number in before} == before
    assert not before.keys() & set(forker.journaled("submitted")), "measured a second time"
    return now


@pytest.mark.sweep(3)
@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_run_killed_at_a_commit_boundary_loses_no_outcome_and_measures_none_twice(
    forker: Forker, space: Path, unbroken: RunFolder, tmp_path: Path, point: str
) -> None:
    runs = ("--runs-dir", tmp_path / "runs")
    assert forker.run("run", space, "--trials", TRIALS, *runs, crash=point) == KILLED
    run = _only_run(tmp_path / "runs")
    if point in BEFORE_THE_RUN_EXISTS:
        assert run is None
        (folder,) = (tmp_path / "runs").iterdir()
        assert forker.run("resume", folder.name, *runs) == 2
        expected = "start it again" if (folder / "sources").exists() else "no run"
        assert expected in forker.output()
        assert forker.run("run", space, "--trials", TRIALS, *runs) == 0
        run = _only_run(tmp_path / "runs")
    else:
        assert run is not None
        kept = _check_acknowledged(forker, {}, run)
        assert forker.run("resume", run.id, *runs) == 0
        _check_acknowledged(forker, kept, run)
    assert run is not None
    assert digest(run) == digest(unbroken)
    assert history(run) == history(unbroken)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "point", ["snapshot saved", "outcome about to be stored", "outcome stored"]
)
def test_a_run_killed_again_while_it_resumes_ends_with_the_same_history(
    forker: Forker, space: Path, unbroken: RunFolder, tmp_path: Path, point: str
) -> None:
    runs = ("--runs-dir", tmp_path / "runs")
    first = "outcome about to be stored"
    assert forker.run("run", space, "--trials", TRIALS, *runs, crash=first) == KILLED
    run = _only_run(tmp_path / "runs")
    assert run is not None
    kept = _check_acknowledged(forker, {}, run)
    assert forker.run("resume", "latest", *runs, crash=point) == KILLED
    kept = _check_acknowledged(forker, kept, run)
    assert forker.run("resume", "latest", *runs) == 0
    _check_acknowledged(forker, kept, run)
    assert history(run) == history(unbroken)


def _kill_at_random(
    forker: Forker, space: Path, unbroken: RunFolder, folder: Path, kills: int
) -> dict[str, int]:
    """Kills runs at random moments, resumes each to its end and compares it with the unbroken
    run. Returns the counts."""
    rng = random.Random(0)
    started = time.monotonic()
    assert forker.run("run", space, "--trials", TRIALS, "--runs-dir", folder / "timed") == 0
    whole_s = time.monotonic() - started
    counts = {"kills": 0, "runs": 0, "kills_before_a_run_had_begun": 0, "acknowledged": 0}
    while counts["kills"] < kills:
        counts["runs"] += 1
        runs_dir = folder / str(counts["runs"])
        kept: dict[int, Trial] = {}
        status = KILLED
        while status == KILLED:
            run = _only_run(runs_dir)
            command = ("run", space, "--trials", TRIALS) if run is None else ("resume", "latest")
            session = forker.start(*command, "--runs-dir", runs_dir)
            time.sleep(rng.uniform(0.0, whole_s))
            if counts["kills"] < kills:
                os.kill(session.pid, signal.SIGKILL)
            status = session.finish()
            counts["kills"] += status == KILLED
            run = _only_run(runs_dir)
            counts["kills_before_a_run_had_begun"] += run is None
            kept = _check_acknowledged(forker, kept, run)
            counts["acknowledged"] += len(forker.journaled("stored"))
        assert status == 0, forker.output()
        assert run is not None
        assert digest(run) == digest(unbroken)
        assert history(run) == history(unbroken)
    return counts


def test_a_run_killed_at_random_moments_ends_with_the_same_history(
    forker: Forker, space: Path, unbroken: RunFolder, tmp_path: Path
) -> None:
    counts = _kill_at_random(forker, space, unbroken, tmp_path, kills=3)
    assert counts["kills"] == 3


@pytest.mark.soak
def test_killed_two_hundred_times(
    forker: Forker,
    space: Path,
    unbroken: RunFolder,
    tmp_path: Path,
    keep_result: Callable[..., None],
) -> None:
    counts = _kill_at_random(forker, space, unbroken, tmp_path, kills=200)
    keep_result(device="recorded", **counts, lost=0, measured_twice=0, other_histories=0)


def test_a_snapshot_of_another_version_is_passed_over(
    space: Path, unbroken: RunFolder, forker: Forker, tmp_path: Path
) -> None:
    runs = ("--runs-dir", tmp_path)
    assert forker.run("run", space, "--trials", 60, *runs) == 0
    run = _only_run(tmp_path)
    assert run is not None
    with RunStore.open_for_writing(run.store) as store:
        for told in (40, 60):
            assert (store.snapshot(at_most=told) or (0,))[0] == told
            store.save_snapshot(told, {"version": -1})
    assert forker.run("resume", "latest", "--trials", TRIALS, *runs) == 0, forker.output()
    assert history(run) == history(unbroken)
