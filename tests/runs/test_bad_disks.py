"""A full or read-only disk ends a command with one sentence; stored outcomes stay whole."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from evotune.errors import StoreError
from evotune.runs.folder import list_runs
from evotune.store import RunStore
from evotune.trial import Configuration, Json, Outcome, OutcomeKind, Trial
from tests.patience import PATIENCE_S

from .runs import evotune, history, recorded_space, run_here

TRIALS = 120


def _limited(command: list[str], kib: int) -> subprocess.CompletedProcess[str]:
    """Runs `command` with files of at most `kib` KiB: a write beyond that fails as on a full
    disk."""
    script = f"ulimit -f {kib} && exec {shlex.join(command)}"
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.soak
def test_a_run_whose_disk_is_full_can_be_resumed_when_it_is_not(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space")
    runs = ("--runs-dir", tmp_path / "runs")
    full = _limited(evotune("run", space, "--trials", str(TRIALS), *runs), 250)
    assert full.returncode == 4
    assert full.stderr.splitlines()[-1].startswith("error: the store ")
    assert full.stderr.endswith("repair that, then resume\n")
    assert "Traceback" not in full.stderr
    (run,) = list_runs(tmp_path / "runs")
    kept = history(run)
    assert 0 < len(kept) < TRIALS
    still_full = _limited(evotune("resume", run.path), 250)
    assert still_full.returncode == 4
    assert history(run)[: len(kept)] == kept
    subprocess.run(evotune("resume", run.path), check=True, capture_output=True, timeout=PATIENCE_S)
    assert history(run) == history(run_here(space, tmp_path / "unbroken", trials=TRIALS))


def test_a_disk_that_is_full_while_a_store_is_made_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log found room, and the main file finds none when the log moves into it."""
    path = tmp_path / "store.sqlite"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    set_facts = RunStore.set_facts

    def then_full(store: RunStore, facts: Mapping[str, Json]) -> None:
        set_facts(store, facts)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "set_facts", then_full)
        try:
            with pytest.raises(StoreError, match="cannot be used now"):
                RunStore.create(path, {"state": "running"})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not path.exists()
    with RunStore.create(path, {"state": "again"}) as store:
        assert store.meta("state") == "again"
    assert {found.name for found in tmp_path.iterdir()} == {"store.sqlite", "store.sha256"}


def test_a_full_disk_is_told_apart_from_damage(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "store.sqlite") as store:
        store._connection.execute("PRAGMA max_page_count = 1")
        outcome = Outcome(OutcomeKind.NAN, log="x" * 100_000)
        with pytest.raises(StoreError, match=r"cannot be used now \(database or disk is full\)"):
            store.append(Trial(0, Configuration({"A": 1}), outcome), 0.0)
        assert store.count() == 0


def test_a_place_where_no_run_can_be_made_is_refused_in_one_line() -> None:
    space = Path(__file__).parents[1] / "data" / "synthetic_recording.json.gz"
    refused = _limited(evotune("run", space, "--runs-dir", "/proc/runs"), 1000)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: cannot create the run's folder /proc/runs/")
    assert refused.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_run_can_be_read_and_not_resumed(tmp_path: Path) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=20)
    for folder in (run.sources, run.logs, run.path):
        folder.chmod(0o555)
    (run.path / "lock").chmod(0o444)
    try:
        top = _limited(evotune("top", run.path), 1000)
        assert (top.returncode, top.stderr) == (0, "")
        refused = _limited(evotune("resume", run.path, "--trials", "30"), 1000)
        assert refused.returncode == 3
        assert refused.stderr.endswith("Permission denied\n")
    finally:
        run.path.chmod(0o755)


@pytest.mark.parametrize("command", ["top", "report", "status"])
def test_output_that_finds_no_space_is_said_in_one_line(tmp_path: Path, command: str) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=20)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            evotune(command, run.path), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (3, "error: No space left on device\n")
