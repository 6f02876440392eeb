"""Tests that a sample of the space compiles, and that the default configuration is correct.

    python -m pytest test_@ENTRY@.py
"""

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def evotune(*words):
    command = [sys.executable, "-m", "evotune", *words]
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)


def test_a_sample_of_the_space_compiles():
    done = evotune("compile", "space.yaml", "--sample", "8"@DEVICE@)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_default_is_correct(tmp_path):
    runs = ("--runs-dir", str(tmp_path))
    done = evotune("run", "space.yaml", "--trials", "1", "--champions", "0", *runs)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(evotune("report", "latest", "--format", "json", *runs).stdout)
    assert report["trials"][0]["outcome"] == "ok"
