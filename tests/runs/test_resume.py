"""A run that was killed and resumed has the history of one that never stopped."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from evotune.errors import EnvironmentProblem, EvotuneError, RunLocked, UsageError
from evotune.runs import environment, search_loop
from evotune.runs.folder import RunFolder, list_runs
from evotune.runs.kernel_run import RecordedRun
from evotune.runs.observer import SilentObserver
from evotune.runs.setup import GpuRequest
from evotune.runs.starting import resume_run
from evotune.store import RunStore
from tests.patience import PATIENCE_S

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

TRIALS = 160


@pytest.fixture(scope="module")
def slow_space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_space(tmp_path_factory.mktemp("space"), delay_ms=1.0)


@pytest.fixture(scope="module")
def unbroken_run(
    slow_space: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], RunFolder]:
    """The run of a strategy that nobody kills."""
    folder = tmp_path_factory.mktemp("unbroken")
    return functools.cache(
        lambda strategy: run_here(slow_space, folder, trials=TRIALS, strategy=strategy)
    )


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("strategy", "killed_after"),
    [("evolution", 130), ("evolution", 17), ("local", 130), ("random", 130)],
)
def test_a_killed_run_resumes_to_the_same_history(
    tmp_path: Path,
    slow_space: Path,
    unbroken_run: Callable[[str], RunFolder],
    strategy: str,
    killed_after: int,
) -> None:
    space, unbroken = slow_space, unbroken_run(strategy)
    process = start_killable(
        "run", space, "--trials", str(TRIALS), "--strategy", strategy, "--runs-dir", tmp_path / "k"
    )
    run = kill_when_stored(process, tmp_path / "k", killed_after)
    before = history(run)
    subprocess.run(evotune("resume", run.path), check=True, capture_output=True, timeout=PATIENCE_S)
    after = history(run)
    assert killed_after <= len(before) < TRIALS
    assert after[: len(before)] == before, "what was acknowledged is kept as it was"
    assert digest(run) == digest(unbroken)
    assert after == history(unbroken)


@pytest.mark.soak
def test_a_run_killed_again_and_again_still_has_the_same_history(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space", delay_ms=1.0)
    unbroken = run_here(space, tmp_path / "unbroken", trials=TRIALS)
    process = start_killable("run", space, "--trials", str(TRIALS), "--runs-dir", tmp_path / "k")
    run = kill_when_stored(process, tmp_path / "k", 20)
    for count in (21, 60, 61, 110):
        process = start_killable("resume", run.path)
        kill_when_stored(process, tmp_path / "k", count)
    subprocess.run(evotune("resume", run.path), check=True, capture_output=True, timeout=PATIENCE_S)
    assert history(run) == history(unbroken)


def test_a_finished_run_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space")
    long = run_here(space, tmp_path / "long", trials=120)
    run = run_here(space, tmp_path / "short", trials=50)
    assert resume_run(run, SilentObserver(), trials=120).reason == "trials"
    assert history(run) == history(long)


def test_a_smaller_budget_than_what_is_done_is_refused(tmp_path: Path) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=50)
    with pytest.raises(UsageError, match="has 50 trials already"):
        resume_run(run, SilentObserver(), trials=40)


@pytest.mark.parametrize("wish", ["fewer trials", "another machine", "GPUs"])
def test_a_refused_resume_leaves_the_files_of_a_killed_run_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    whole = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=20)
    with RunStore.open_for_writing(whole.store) as store:
        store.set_meta("state", "running")
        shutil.copytree(whole.path, tmp_path / "killed")
    run = RunFolder(tmp_path / "killed")
    before = _files_of(run)
    assert "store.sqlite-wal" in before
    assert "store.sha256" not in before
    if wish == "another machine":
        monkeypatch.setattr(environment, "changes", lambda then, now: ["another driver"])
    with pytest.raises(EvotuneError):
        resume_run(
            run,
            SilentObserver(),
            trials=10 if wish == "fewer trials" else 30,
            gpus=GpuRequest(1) if wish == "GPUs" else None,
        )
    assert _files_of(run) == before


def _files_of(run: RunFolder) -> dict[str, bytes]:
    """The store's files, without the index that readers share."""
    found = {path.name: path.read_bytes() for path in run.path.glob("store.*")}
    found.pop("store.sqlite-shm", None)
    return found


def test_resuming_a_finished_run_without_more_budget_changes_nothing(tmp_path: Path) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=50)
    before = history(run)
    resume_run(run, SilentObserver())
    assert history(run) == before


def test_a_run_lives_on_its_own_copy_of_the_space(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space")
    long = run_here(space, tmp_path / "long", trials=120)
    run = run_here(space, tmp_path / "runs", trials=60)
    for path in space.parent.iterdir():
        path.unlink()
    resume_run(run, SilentObserver(), trials=120)
    assert history(run) == history(long)


def test_a_snapshot_of_the_search_equals_the_full_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_loop, "_SNAPSHOT_EVERY", 100)
    space = recorded_space(tmp_path / "space")
    whole = run_here(space, tmp_path / "whole", trials=180)
    run = run_here(space, tmp_path / "runs", trials=140)
    with RunStore.open_for_reading(run.store) as store:
        assert (store.snapshot(at_most=124) or (0,))[0] == 100
    resume_run(run, SilentObserver(), trials=180)
    assert history(run) == history(whole)


@pytest.mark.parametrize("error", [EnvironmentProblem("no worker starts"), OSError("no space")])
def test_a_run_whose_confirmations_fail_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(RecordedRun, "confirms", True)
    with monkeypatch.context() as patch:
        patch.setattr(RecordedRun, "confirmed", fails)
        with pytest.raises(type(error)):
            run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=30)
    (run,) = list_runs(tmp_path / "runs")
    with RunStore.open_for_reading(run.store) as store:
        assert (store.meta("state"), store.count()) == ("interrupted", 30)
    assert resume_run(run, SilentObserver()).reason == "trials"
    with RunStore.open_for_reading(run.store) as store:
        assert store.meta("state") == "finished:trials"


def test_a_run_that_is_being_worked_on_is_locked(tmp_path: Path) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=20)
    with run.locked():
        second = subprocess.run(
            evotune("resume", run.path),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        with pytest.raises(RunLocked):
            resume_run(run, SilentObserver())
    assert second.returncode == 5
    assert "is being worked on by process" in second.stderr
    assert stored(run) == 20
