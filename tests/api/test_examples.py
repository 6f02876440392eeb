"""The examples for users run: the script (from a file and from stdin) and those in docstrings."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import evotune
from evotune.cli.main import application
from tests.runs.runs import brief_confirmations
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


def _needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package}")


def _said(script: str, folder: Path, trials: int = 1) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), str(trials)],
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


@pytest.mark.soak
@pytest.mark.parametrize(
    "script",
    [
        pytest.param("callable_numba.py", marks=_needs("numba")),
        "callable_compile.py",
        "callable_flex.py",
    ],
)
def test_a_callable_is_tuned_called_compared_explained_reported_and_exported(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = _said(script, tmp_path, trials=3)
    assert float(said.partition("largest difference: ")[2].splitlines()[0]) < 1e-5
    monkeypatch.chdir(tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    for words in (
        ("resume", str(run), "--champions", "1"),
        ("compare", str(run), f"{run}:default"),
        ("explain", str(run), "--no-measure"),
        ("report", str(run), "--format", "md"),
        ("export", str(run), "-o", "exported"),
    ):
        with brief_confirmations():
            done = CliRunner().invoke(application, list(words))
        assert done.exit_code == 0, (words, done.output)
    exported = json.loads((tmp_path / "exported" / "configuration.json").read_text())
    assert all(f"{name}=" in said for name in exported["configuration"])
    assert exported["measurements"][0]["speedup"] > 0


def test_the_example_for_triton_says_what_it_needs_and_is_valid_python(tmp_path: Path) -> None:
    script = EXAMPLES / "callable_triton.py"
    source = re.search(r'SOURCE = """\n(.*?)"""', script.read_text(), re.DOTALL)
    assert source is not None
    compile(source[1], "kernel.py", "exec")
    if torch.cuda.is_available() and importlib.util.find_spec("triton"):
        pytest.skip("it would run")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (1, "this example needs Triton and a CUDA GPU\n")


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
