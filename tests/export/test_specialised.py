"""Packages of kernels that have values compiled in for measured cases only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from evotune.engine.setup import KernelSetup, load_setup
from evotune.engine.spaces import shipped_spaces
from evotune.errors import SpaceError
from evotune.execute.executor import EDGE, RANDOM
from evotune.export.exporting import export_runs
from evotune.export.runtime._dispatch import Choice, Dispatch

from .making import fabricated


def softmax(folder: Path, known: str, **kernel: Any) -> Path:
    """The softmax space of the CPU with a `let`, `known`, that is specialised."""
    shipped = shipped_spaces()["softmax-cpu"]
    told = yaml.safe_load(shipped.read_text())
    told["root"] = str(shipped.parents[1])
    told["let"] = {"known": known}
    told["kernels"]["softmax"] |= {"specialise": ["known"], **kernel}
    (folder / "space.yaml").write_text(yaml.safe_dump(told))
    return folder / "space.yaml"


@pytest.mark.parametrize("define", [[], ["dtype"]])
@pytest.mark.parametrize("known", ["columns", "columns if rows > 1 else 0"])
def test_a_package_serves_measured_cases_and_others(
    known: str, define: list[str], tmp_path: Path
) -> None:
    run = fabricated(softmax(tmp_path, known, define=define), tmp_path)
    found = export_runs([run], tmp_path / "pkg")
    described = json.loads((tmp_path / "pkg" / found.name / "dispatch.json").read_text())
    package = Dispatch(described)
    assert len(described["kernels"][0]["binaries"]) == 4  # of three measured widths, and the others
    for columns, compiled in ((1024, 1024), (1500, 1500), (16384, 16384), (777, 0), (640, 0)):
        case = {"rows": 300, "columns": columns, "dtype": "float32"}
        choice = package.choose(case, "contiguous", anywhere=True)
        assert isinstance(choice, Choice), columns
        assert choice.binary["fixed"].get("known", 0) == compiled


def test_each_specialised_binary_has_edge_cases_and_random_ones(tmp_path: Path) -> None:
    setup = load_setup(softmax(tmp_path, "columns"), "cpu")
    assert isinstance(setup, KernelSetup)
    made = setup.planner.proposal(0, setup.space.default())
    assert {job.case.symbols["columns"] for job in made.cases if job.role == EDGE} == {1024, 16384}
    made = setup.planner.proposal(0, setup.space.default(), confirm=True)
    random = [dict(job.compile.defines)["KNOWN"] for job in made.cases if job.role == RANDOM]
    assert min(random.count(columns) for columns in (1024, 1500, 16384)) > 3
    assert random.count(0) > 20


@pytest.mark.parametrize(
    ("known", "kernel", "message"),
    [
        ("columns / 3000", {}, "'known' is 0.341.* for .*: only a whole number can be compiled in"),
        ("columns", {"define": ["known"]}, "'known' is compiled in twice"),
        ("columns", {"specialise": ["known", "known"]}, "'known' is compiled in twice"),
    ],
)
def test_a_mistake_is_told(
    known: str, kernel: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpaceError, match=message):
        load_setup(softmax(tmp_path, known, **kernel), "cpu")
