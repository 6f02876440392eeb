"""Runs the tests of CUDA packages' launchers in a process of their own.

Their fake driver takes libcuda's place in its process for good. NVRTC, which other tests call,
crashes in such a process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

TESTS = Path(__file__).with_name("on_a_fake_driver.py")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("marked", ["not soak", pytest.param("soak", marks=pytest.mark.soak)])
def test_the_launchers_on_a_driver_that_runs_on_the_cpu(marked: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", "-m", marked]
    command = [sys.executable, "-m", "pytest", *options, str(TESTS)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
