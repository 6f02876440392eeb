"""When a package is missing, every command names it and `doctor` says how to get it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from report.runs import make_run, ok

from evotune.packages import REQUIRED
from tests.sweeps import swept

from .conftest import ROOT

_HIDING = """
import sys
class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hider())
"""


def _run(
    folder: Path, hidden: set[str], *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(_HIDING.format(hidden=hidden))
    return subprocess.run(
        [sys.executable, "-m", "evotune", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_required_packages_are_those_that_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert sorted(REQUIRED) == sorted(re.split("[<>=]", text)[0] for text in declared)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs", [ok(1.2)]).path


SOON = {"click", "msgspec", "torch"}
"""Needed by every command, by all that read runs, and by no report."""


@pytest.mark.parametrize("name", swept(REQUIRED, lambda name: name in SOON))
def test_a_missing_package_is_named_with_the_way_to_get_it(
    tmp_path: Path, recorded: Path, name: str
) -> None:
    done = _run(tmp_path, {REQUIRED[name]}, "doctor")
    assert (done.returncode, done.stderr) == (3, "")
    assert re.search(rf"^  {name}: pip install '{name}\b.*'$", done.stdout, re.MULTILINE)
    done = _run(tmp_path, {REQUIRED[name]}, "report", recorded, "--format", "html", "-o", "out")
    if done.returncode:  # not every command needs every package
        line = f"error: not installed: {name}; `evotune doctor` shows how to get it\n"
        assert (done.returncode, done.stdout, done.stderr) == (3, "", line)
    else:
        assert name not in ("click", "msgspec")


def test_several_missing_packages_are_all_told_in_json_and_to_a_file_too(tmp_path: Path) -> None:
    hidden = {"click", "torch"}
    done = _run(tmp_path, hidden, "doctor", "--format", "json", "-o", "found.json")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["usable"] is False
    assert {finding["name"]: finding["status"] for finding in found["findings"]} == dict.fromkeys(
        hidden, "missing"
    )
    assert {"name", "status", "detail", "fix"} == set(found["findings"][0])
