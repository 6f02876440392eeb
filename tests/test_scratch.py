"""A temporary folder is removed when its owner ends; a killed owner's, when the next is made."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evotune.util import files
from evotune.util.files import scratch_folder

_OWNER = """
import sys
from evotune.util.files import scratch_folder
with scratch_folder() as folder:
    (folder / "big.bin").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    files._remove_abandoned.cache_clear()
    yield tmp_path
    files._remove_abandoned.cache_clear()


def _owner() -> tuple[subprocess.Popen[str], Path]:
    path = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_removed_at_the_end_also_by_an_error(temporary: Path) -> None:
    with contextlib.suppress(ZeroDivisionError), scratch_folder() as folder:
        assert folder.parent == temporary
        (folder / "deep").mkdir()
        raise ZeroDivisionError
    assert list(temporary.iterdir()) == []


def test_the_folder_of_a_killed_owner_goes_and_that_of_a_living_one_stays(temporary: Path) -> None:
    (killed, left), (living, kept) = _owner(), _owner()
    killed.kill()
    killed.communicate()
    assert (left / "big.bin").exists()
    with scratch_folder() as own:
        assert sorted(temporary.iterdir()) == sorted((kept, own))
    living.communicate("")
    assert list(temporary.iterdir()) == []


def test_what_is_not_such_a_folder_is_left_alone(temporary: Path, tmp_path: Path) -> None:
    precious = temporary / "precious"
    (precious / "kept").mkdir(parents=True)
    (precious / "owner.lock").touch()
    (temporary / "evotune-link").symlink_to(precious)
    (temporary / "evotune-of-an-older-version").mkdir()
    (temporary / "evotune-file").touch()
    before = sorted(temporary.rglob("*"))
    with scratch_folder():
        pass
    assert sorted(temporary.rglob("*")) == before


def test_a_folder_that_is_removed_while_it_is_made_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may lock the new folder first, and take it for an abandoned one."""
    real, taken = files.fcntl.flock, []

    def flock(lock: int, how: int) -> None:
        if not taken:
            (folder,) = temporary.iterdir()
            taken.append(folder)
            files.shutil.rmtree(folder)
        real(lock, how)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with scratch_folder() as folder:
        assert folder.is_dir()
        assert folder != taken[0]
