"""The examples for users run: the script (from a file and from stdin) and those in docstrings."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import evotune
from tests.sweeps import swept

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "tune_softmax.py"


@pytest.mark.parametrize("stdin", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_script_tunes_runs_its_kernel_and_writes_a_report(tmp_path: Path, stdin: bool) -> None:
    words = ["-", "1"] if stdin else [str(SCRIPT), "1"]
    done = subprocess.run(
        [sys.executable, *words],
        input=SCRIPT.read_text() if stdin else "",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    difference = done.stdout.partition("largest difference: ")[2].splitlines()[0]
    assert float(difference) < 1e-6
    assert "<html" in (tmp_path / "softmax.html").read_text()


def _said(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), "1"],
        capture_output=True, text=True, cwd=folder, check=False,
    )  # fmt: skip
    nothing_won = done.returncode == 1 and done.stderr.startswith("nothing to use: ")
    assert done.returncode == 0 or nothing_won, done.stderr
    return done.stdout


@pytest.mark.soak
def test_a_kernel_of_ones_own_in_one_script(tmp_path: Path) -> None:
    said = _said("own_kernel.py", tmp_path)
    assert float(said.partition("largest difference: ")[2].splitlines()[0]) < 1e-4


@pytest.mark.soak
def test_a_model_whose_attention_a_package_serves(tmp_path: Path) -> None:
    assert "<trial 0: " in _said("serve_attention.py", tmp_path)


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_explained_run_here_and_uses_what_evotune_has(script: Path) -> None:
    assert f"`{script.name}`" in (EXAMPLES / "README.md").read_text()
    assert script.name in Path(__file__).read_text()
    for name in re.findall(r"\bevotune\.(\w+)", script.read_text()):
        assert hasattr(evotune, name), name


@pytest.mark.parametrize(
    "name", swept(("api.tuning", "api.checking", "search.catalog"), "search.catalog".__eq__)
)
def test_examples_in_docstrings_are_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # they leave their folders behind
    found = doctest.testmod(importlib.import_module(f"evotune.{name}"))
    assert found.attempted
    assert not found.failed
