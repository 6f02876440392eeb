"""The wheel carries kernels and spaces: `evotune run NAME` works after pip install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Builds the wheel and installs it into a folder; returns the environment to use it in."""
    folder = tmp_path_factory.mktemp("wheel")
    for command in (
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT],
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder / "site"],
    ):
        wheels = [str(path) for path in folder.glob("*.whl")] if "pip" in command else []
        done = subprocess.run(
            [*map(str, command), *wheels], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return {
        **os.environ,
        "PYTHONPATH": str(folder / "site"),
        "EVOTUNE_CACHE_DIR": str(folder / "cache"),
    }


def test_an_installed_evotune_compiles_a_shipped_space(
    installed: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "evotune", "compile", "rms-norm-cpu", "--sample", "1"],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_an_installed_evotune_tunes_a_shipped_space(
    installed: dict[str, str], tmp_path: Path
) -> None:
    evotune = [sys.executable, "-P", "-m", "evotune"]
    run = subprocess.run(
        [*evotune, "run", "rms-norm-cpu", "--trials", "1"],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    report = subprocess.run(
        [*evotune, "report", "latest", "--format", "json"],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
        check=True,
    )
    data = json.loads(report.stdout)
    (trial,) = data["trials"]
    assert trial["outcome"] == "ok"
    assert trial["speedup"] > 0


def _files(folder: Path) -> set[Path]:
    """The files of a folder, without the bytecode that an installer makes."""
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_holds_what_the_working_tree_ships(installed: dict[str, str]) -> None:
    shipped = Path(installed["PYTHONPATH"]) / "evotune" / "shipped"
    for folder in ("kernels", "search_spaces"):
        assert _files(shipped / folder) == _files(ROOT / folder)
