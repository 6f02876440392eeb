"""A run goes on only with the space, the kernels and the recording that it began with."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Invoke, invoke
from store.forging import forge

from evotune.errors import StoreError
from evotune.runs.folder import RunFolder
from evotune.runs.observer import Progress, SilentObserver
from evotune.runs.starting import resume_run, start_run
from evotune.trial import Trial

from .runs import history, recorded_space, run_here, run_request

__all__ = ["invoke"]  # a fixture


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=20)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


CHANGES: dict[str, tuple[Callable[[RunFolder], object], str]] = {
    "recording": (lambda run: _flip(run.sources / "recording.json.gz"), "recording.json.gz was ch"),
    "space": (
        lambda run: (run.sources / "space.yaml").write_text(
            (run.sources / "space.yaml").read_text().replace("elites: 4", "elites: 3")
        ),
        "space.yaml was changed",
    ),
    "lost": (lambda run: (run.sources / "recording.json.gz").unlink(), "gz is missing"),
    "added": (lambda run: (run.sources / "more.h").write_text(""), "more.h was added"),
    "all": (lambda run: shutil.rmtree(run.sources), "recording.json.gz is missing"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_named_and_the_run_stays_as_it_is(run: RunFolder, name: str) -> None:
    change, words = CHANGES[name]
    change(run)
    before = run.store.read_bytes()
    with pytest.raises(StoreError, match=rf"{words}.* since the run began") as caught:
        resume_run(run, SilentObserver(), trials=40)
    assert caught.value.exit_code == 4
    assert run.store.read_bytes() == before
    assert len(history(run)) == 20, "reading goes on"


@pytest.mark.parametrize("place", ["/etc/passwd", "../../environment.json", "", "no/such.yaml"])
@pytest.mark.parametrize("old", [False, True])
def test_a_store_cannot_name_a_file_of_another_place_as_its_space(
    run: RunFolder, invoke: Invoke, place: str, old: bool
) -> None:
    forge(run.store, f"UPDATE meta SET value = '\"{place}\"' WHERE name = 'space_file'")
    if old:  # a run of a version that kept no hashes of its files
        forge(run.store, "DELETE FROM meta WHERE name = 'sources'")
    result = invoke("resume", run.path, "--trials", 40)
    assert result.exit_code == 4, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    assert "root" not in result.stderr.replace("-of-root", "")


def test_a_run_of_before_resumes(run: RunFolder) -> None:
    forge(run.store, "DELETE FROM meta WHERE name IN ('sources', 'environment')")
    resume_run(run, SilentObserver(), trials=40)
    assert len(history(run)) == 40


class _Deletes(SilentObserver):
    """Deletes the run's folder once some outcomes are told, and counts how many come after it."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self.after = -1

    def told(self, trial: Trial, progress: Progress) -> None:
        if self.after >= 0:
            self.after += 1
        elif progress.told == 30:
            shutil.rmtree(self._runs_dir)
            self.after = 0


def test_a_deleted_folder_ends_the_run_with_the_next_outcome(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space", delay_ms=1.0)
    watch = _Deletes(tmp_path / "runs")
    with pytest.raises(StoreError, match="was deleted or replaced while it was in use"):
        start_run(run_request(space, tmp_path / "runs", trials=10_000), watch)
    assert 0 <= watch.after <= 1
    assert not (tmp_path / "runs").exists()
