"""Backends, problems and strategies from outside of evotune need no change in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from evotune.trial import Json

from .installed import HERE, install

ROOT = HERE.parents[1]
KERNEL = """
import torch

def double(x, out, IN_PLACE):
    if IN_PLACE:
        torch.mul(x, 2, out=out)
    else:
        out.copy_(x + x)
"""
SPACE = """
name: doubling
root: .
problem:
  name: PROBLEM
  dtype: float32
  shapes: [{count: 4096}]
kernels:
  double: {source: double.py, entry: double, language: toy, arguments: [x, out, count]}
parameters:
  IN_PLACE: {bool: true}
baseline: torch:best
search: {strategy: STRATEGY}
"""


_BRIEFLY = """
import sys
from evotune.cli.main import main
from tests.runs.runs import brief_confirmations
with brief_confirmations():
    sys.exit(main())
"""


class Machine:
    """A folder `site` for packages, and a working folder with a space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.work = folder / "work"
        self.work.mkdir()

    def space(self, problem: str, strategy: str) -> None:
        text = SPACE.replace("PROBLEM", problem).replace("STRATEGY", strategy)
        (self.work / "space.yaml").write_text(text)
        (self.work / "double.py").write_text(KERNEL)

    def evotune(self, *words: str, briefly: bool = False) -> subprocess.CompletedProcess[str]:
        program = ("-c", _BRIEFLY) if briefly else ("-m", "evotune")
        return subprocess.run(
            [sys.executable, *program, *words],
            cwd=self.work,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(ROOT), str(self.site))),
                "EVOTUNE_CACHE_DIR": str(self.folder / "cache"),
                "CUDA_VISIBLE_DEVICES": "",
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def report(self) -> dict[str, Json]:
        """The report of a run with two trials and a champion."""
        limits = ("--trials", "2", "--champions", "1")
        done = self.evotune("run", "space.yaml", *limits, "--trust", briefly=True)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Json] = json.loads(
            self.evotune("report", "latest", "--format", "json").stdout
        )
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.soak
def test_a_backend_in_one_file_needs_no_change_elsewhere(machine: Machine) -> None:
    install(machine.site, "toy", {"toy.py": HERE / "toy.py"}, {"backends toy": "toy:BACKEND"})
    (machine.work / "problem.py").write_text((HERE / "outside/problem.py").read_text())
    machine.space("problem.py:Doubling", "random")
    checked = machine.evotune("check", "space.yaml", "--trust")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "toy machine" in checked.stdout


@pytest.mark.soak
def test_a_package_brings_a_backend_a_problem_and_a_strategy(machine: Machine) -> None:
    modules: dict[str, Path | str] = {
        "outside/__init__.py": "",
        "outside/toy.py": HERE / "toy.py",
        "outside/problem.py": HERE / "outside/problem.py",
        "outside/strategy.py": HERE / "outside/strategy.py",
    }
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    points = {
        f"{group.removeprefix('evotune.')} {name}": target
        for group, named in tomllib.loads(block)["project"]["entry-points"].items()
        for name, target in named.items()
    }
    assert len(points) == 3
    install(machine.site, "outside", modules, points)
    machine.space("doubling", "flood")
    listed = machine.evotune("list").stdout
    assert [line.split() for line in listed.splitlines() if line.endswith("outside")] == [
        ["toy", "backend", "outside"],
        ["doubling", "problem", "outside"],
        ["flood", "strategy", "outside"],
    ]
    checked = machine.evotune("check", "space.yaml", "--trust", "--device", "toy")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    report = machine.report()
    assert [trial["outcome"] for trial in report["trials"]] == ["ok", "ok"]
    assert any(trial["confirmed"] for trial in report["trials"])
    assert report["environment"]["device"]["name"] == "toy machine"
    status = json.loads(machine.evotune("status", "latest", "--format", "json").stdout)
    assert status["strategy"] == "flood"
    unknown = machine.evotune("check", "space.yaml", "--device", "toys")
    assert "expected auto, cpu, cuda:N, toy or one of l4" in unknown.stderr


@pytest.fixture
def broken(machine: Machine) -> Machine:
    """A machine with a package whose objects cannot be loaded."""
    points = {
        "backends toy": "broken:BACKEND",
        "problems doubling": "broken:Doubling",
        "strategies flood": "hollow:Flood",
    }
    modules: dict[str, Path | str] = {
        "broken.py": "raise RuntimeError('cannot be\\nimported')\n",
        "hollow.py": "class Flood: pass\n",
    }
    install(machine.site, "outside", modules, points)
    return machine


WHY = "of the package outside cannot be loaded: RuntimeError: cannot be imported; fix: "


def test_who_needs_a_broken_package_is_told(broken: Machine) -> None:
    broken.space("doubling", "flood")
    refused = broken.evotune("check", "space.yaml", "--trust")
    assert refused.returncode == 2
    assert "expected 'cpp', 'cuda', 'triton' or 'python', found 'toy'" in refused.stderr
    assert f"the backend 'toy' {WHY}" in refused.stderr


@pytest.mark.soak
def test_a_broken_package_stops_only_who_needs_it(broken: Machine) -> None:
    fine = broken.evotune("check", "softmax-cpu", "--no-compile")
    assert (fine.returncode, "outside" in fine.stderr) == (0, False)
    shipped = broken.evotune("run", "softmax-cpu", "--strategy", "flood", "--trials", "1")
    assert (shipped.returncode, shipped.stderr.count("\n")) == (3, 1)
    assert "the strategy 'flood' of the package outside" in shipped.stderr
    assert "hollow:Flood has no ask, no tell; fix" in shipped.stderr


def test_a_broken_package_is_named_in_the_list(broken: Machine) -> None:
    listed = broken.evotune("list")
    assert listed.returncode == 0
    assert f"the problem 'doubling' {WHY}" in listed.stderr
    assert "softmax-cpu" in listed.stdout
