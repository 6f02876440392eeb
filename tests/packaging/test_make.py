"""The packages that `make run` would install, with a GPU's driver and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CPU = "--index-url https://download.pytorch.org/whl/cpu"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def commands(folder: Path, cuda: str | None, *arguments: str) -> list[str]:
    """The pip commands on a fresh machine, not executed. `nvidia-smi` reports `cuda`, or fails."""
    (folder / "bin").mkdir()
    smi = folder / "bin" / "nvidia-smi"
    says = f"echo '| Driver Version: 580.1  CUDA Version: {cuda}  |'" if cuda else "exit 9"
    smi.write_text(f"#!/bin/sh\n{says}\n")
    smi.chmod(0o755)
    done = subprocess.run(
        ["make", "--dry-run", "run", f"VENV={folder / 'venv'}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
        text=True,
    )
    joined = done.stdout.replace("\\\n", "")
    return [line for line in joined.splitlines() if "pip" in line]


def test_without_a_driver_torch_comes_from_its_cpu_wheels_first(tmp_path: Path) -> None:
    torch, whole = commands(tmp_path, None)
    assert f"{CPU} -c constraints.txt torch" in torch
    assert "||" in torch, "an index that cannot be reached ends nothing"
    assert "download.pytorch.org" not in whole
    assert whole.endswith("-e '.'")


@pytest.mark.parametrize(("cuda", "extra"), [("12.4", "cuda12"), ("13.0", "cuda13")])
def test_with_a_driver_torch_is_the_default_one(tmp_path: Path, cuda: str, extra: str) -> None:
    (whole,) = commands(tmp_path, cuda)
    assert whole.endswith(f"-e '.[{extra}]'")
    assert "download.pytorch.org" not in whole


def test_whoever_names_an_index_has_torch_from_there(tmp_path: Path) -> None:
    (whole,) = commands(tmp_path, None, "TORCH_INDEX=https://example.org/whl")
    assert "--extra-index-url https://example.org/whl" in whole
