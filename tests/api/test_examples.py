"""The examples for users run: the script (from a file and from stdin) and those in docstrings."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "tune_softmax.py"


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


@pytest.mark.parametrize("name", ["api.tuning", "api.looking", "search.own"])
def test_examples_in_docstrings_are_right(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"evotune.{name}"))
    assert found.attempted
    assert not found.failed
