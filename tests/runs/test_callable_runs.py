"""Whole runs of Python callables: through Python and the command line, agreed to, exported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import evotune
from evotune.cli.main import application
from evotune.errors import SpaceError

from .runs import brief_confirmations

PROBLEM = """
from evotune.problems import UserProblem


class Scale(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def operations(self, rows, columns):
        return 2 * rows * columns

    def check(self, rows, columns):
        if rows * columns > 4096:
            raise ValueError("more than 4096 elements")

    def compute(self, x):
        return {"out": 2.0 * x + 1.0}
"""
KERNEL = """
import torch

from scaling import shift


def make(configuration, case):
    if configuration["ORDER"] == "wrong":
        return lambda x: x * 3.0
    if configuration["IN_PLACE"]:
        def scaled(x, out):
            torch.mul(x, 2.0, out=out)
            out.add_(shift)
    else:
        def scaled(x):
            return {"out": x * 2.0 + shift}
    scaled.case = case
    return scaled
"""
SPACE = """
name: scale
root: .
problem: {name: problem.py:Scale, shapes: [{rows: 16, columns: 64}]}
kernels: {scale: {source: scale.py, entry: make, language: python}}
parameters:
  ORDER: {choices: [plain, wrong]}
  IN_PLACE: {bool: true}
baseline: torch:best
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, text in (("problem", PROBLEM), ("scale", KERNEL), ("scaling", "shift = 1.0\n")):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def test_a_callable_is_tuned_and_called(folder: Path) -> None:
    run = evotune.tune(
        evotune.Callable("scale:make"),
        problem="problem.py:Scale",
        shapes=[{"rows": 16, "columns": 64}],
        parameters={"ORDER": evotune.choices("plain", "wrong"), "IN_PLACE": [False]},
        strategy="exhaustive",
        trials=2,
        champions=0,
        runs_dir=folder / "runs",
    )
    assert {trial.outcome.kind for trial in run.trials} == {"ok", "wrong_result"}
    assert (run.folder.sources / "scaling.py").exists()
    own = sys.modules.get("scaling")
    scale = run.best.kernel()
    for shape in ((16, 64), (3, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(scale(x), 2.0 * x + 1.0)
    assert own is None or sys.modules.get("scaling") is own
    with pytest.raises(ValueError, match="x is float64, the kernel takes float32"):
        scale(torch.ones(2, 2, dtype=torch.float64))


@pytest.mark.soak
def test_a_champion_is_confirmed_reported_explained_and_exported(folder: Path) -> None:
    with brief_confirmations():
        run = evotune.tune("space.yaml", trials=4, champions=1, runs_dir=folder / "runs")
    assert run.best.confirmed
    exported = run.export(folder / "exported")
    found = json.loads((exported / "configuration.json").read_text())
    assert found["configuration"] == run.best.configuration.to_json()
    assert set(found["source"]["files"]) == {"scale.py", "scaling.py"}
    assert found["measurements"][0]["case"] == "(16,64)"
    for words in (
        ("export", "-o", str(folder / "again")),
        ("report", "--format", "md"),
        ("explain", "--no-measure"),
        ("compare", f"{run.folder.path}:0", f"{run.folder.path}:default"),
    ):
        name, *rest = words
        own = [] if name == "compare" else [str(run.folder.path)]
        done = CliRunner().invoke(application, [name, *own, *rest])
        assert done.exit_code == 0, done.output
    assert run.best.kernel()(torch.zeros(2, 2)).eq(1.0).all()


def test_an_imported_file_is_asked_about_as_the_callable_itself(
    folder: Path, nobody_agreed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    asked: list[Path] = []
    monkeypatch.setattr("evotune.user_code.trust.ask", asked.extend)
    with pytest.raises(SpaceError, match=r"would execute .*, which lies outside this folder"):
        evotune.tune(folder / "space.yaml", trials=1)
    assert {path.name for path in asked} == {"problem.py", "scale.py", "scaling.py"}


def test_a_module_is_found_as_import_finds_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = folder / "own" / "kernels"
    inner.mkdir(parents=True)
    for each in (inner, inner.parent):
        (each / "__init__.py").write_text("raise RuntimeError('nothing is imported')\n")
    (inner / "mlp.py").write_text("def make(configuration, case): ...\n")
    kernel = evotune.Callable("own.kernels.mlp:make")
    assert (kernel.source, kernel.entry) == (inner / "mlp.py", "make")
    with pytest.raises(SpaceError, match=r"Callable: there is no module 'own\.kernels\.none'"):
        evotune.Callable("own.kernels.none:make")


def test_a_space_file_checks_and_compiles_without_executing_anything(folder: Path) -> None:
    (folder / "scaling.py").write_text("raise RuntimeError('executed')\n")
    checked = CliRunner().invoke(application, ["check", "space.yaml"])
    assert checked.exit_code == 0, checked.output
    compiled = CliRunner().invoke(application, ["compile", "space.yaml", "--all"])
    assert compiled.exit_code == 0, compiled.output
    (folder / "scaling.py").write_text("shift = \n")
    compiled = CliRunner().invoke(application, ["compile", "space.yaml", "--sample", "1"])
    assert compiled.exit_code == 1, compiled.output
    assert "scaling.py:1: invalid syntax" in compiled.output
