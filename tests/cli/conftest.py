from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from evotune.cli.main import application

Invoke = Callable[..., Result]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs a command line in this process, in an empty folder and with a cache of its own."""
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("PYTHONPATH", _python_path())  # for the child processes
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        words = [str(argument) for argument in arguments]
        return CliRunner().invoke(application, words, prog_name="evotune")

    return run


def start(*arguments: object, cwd: Path, encoding: str = "utf-8") -> subprocess.Popen[str]:
    """`python -m evotune` as a shell would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "evotune", *(str(argument) for argument in arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": _python_path()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding=encoding,
    )


def _python_path() -> str:
    """PYTHONPATH for child processes, so that evotune can be tested without being installed."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
