"""`evotune init` writes files that run at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from evotune.cli.init_command import scaffold
from evotune.cli.main import application
from evotune.space.document import parse_space
from tests.runs.runs import brief_confirmations

from .conftest import Invoke


def test_a_new_kernel_runs_at_once(invoke: Invoke, tmp_path: Path) -> None:
    made = invoke("init", "my-kernel")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.splitlines() == ["cd my-kernel", "evotune run space.yaml"]
    assert sorted(path.name for path in (tmp_path / "my-kernel").iterdir()) == [
        *("README.md", "my-kernel.cpp", "problem.py", "space.schema.json", "space.yaml"),
        "test_my_kernel.py",
    ]
    folder = invoke("run", "my-kernel")
    assert (folder.exit_code, folder.stdout) == (2, "")
    assert (
        "my-kernel: expected a file, found a directory; did you mean my-kernel/space.yaml?"
        in folder.stderr
    )
    space = tmp_path / "my-kernel" / "space.yaml"
    space.write_text(
        space.read_text().replace("rows: 1000", "rows: 20").replace("rows: 777", "rows: 7")
    )
    with brief_confirmations():
        run = invoke("run", "my-kernel/space.yaml", "--trials", 1)
    assert run.exit_code == 0, run.stderr
    assert "torch:" in run.stdout
    assert list((tmp_path / "runs").glob("*/sources/problem.py"))
    space.write_text(space.read_text().replace("torch:best", "torch:fast"))
    mistaken = invoke("run", "my-kernel/space.yaml", "--trials", 1)
    assert mistaken.exit_code == 2
    where = r"error: my-kernel/space.yaml:\d+:\d+: no baseline 'torch:fast'"  # not the run's copy
    assert re.search(where, mistaken.stderr), mistaken.stderr


@pytest.mark.parametrize("language", ["cpp", "cuda", "triton"])
def test_its_readme_names_the_files_and_commands_that_are_there(language: str) -> None:
    made = scaffold("my-kernel", language)
    page = made["README.md"]
    assert "@" not in page
    for file in made:
        assert file in ("README.md", "space.schema.json") or f"`{file}`" in page, file
    assert "`my_kernel`" in page  # the function
    context = click.Context(application, info_name="evotune")
    for line in re.findall(r"^ +evotune (.*?)(?: +#|$)", page, re.MULTILINE):
        name, *words = line.split()
        command = application.get_command(context, name)
        assert command is not None
        command.make_context(name, words, parent=context)


def test_a_space_from_elsewhere_needs_trust(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("init", "elsewhere")
    path = tmp_path / "elsewhere" / "problem.py"
    path.write_text(path.read_text() + "# other content than in any other test\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    space = tmp_path / "elsewhere" / "space.yaml"
    refused = invoke("check", space, "--no-compile")
    assert refused.exit_code == 2
    assert "add --trust" in refused.stderr
    assert f"{space}:5:3: " in refused.stderr
    assert invoke("check", space, "--no-compile", "--trust-problem").exit_code == 0  # the old name
    path.write_text(path.read_text() + "# again\n")
    assert invoke("check", space, "--no-compile").exit_code == 2
    assert invoke("check", space, "--no-compile", "--trust").exit_code == 0
    assert invoke("check", space, "--no-compile").exit_code == 0


def test_the_cuda_scaffold_compiles_without_a_gpu(invoke: Invoke) -> None:
    pytest.importorskip("cupy")
    assert invoke("init", "gpu_kernel", "--language", "cuda").exit_code == 0
    done = invoke("compile", "gpu_kernel/space.yaml", "--device", "h200", "--sample", 2)
    assert done.exit_code == 0, done.stderr


def test_the_triton_scaffold_compiles_without_a_gpu(invoke: Invoke) -> None:
    pytest.importorskip("triton")
    assert invoke("init", "problem", "--language", "triton").exit_code == 2
    assert invoke("init", "page", "--language", "triton").exit_code == 0
    done = invoke("compile", "page/space.yaml", "--device", "h200", "--sample", 2)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("name", ["1st", "../up", "a b", "", "-x" * 30])
def test_a_name_that_is_none_is_refused(invoke: Invoke, name: str, tmp_path: Path) -> None:
    assert invoke("init", "--", name).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    result = invoke("init", "mine")
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    (tmp_path / "link").symlink_to("nowhere")
    assert "exists already" in invoke("init", "link").stderr


@pytest.mark.parametrize("language", ["cpp", "cuda", "triton"])
def test_the_scaffold_is_valid_python_and_a_valid_space(language: str, tmp_path: Path) -> None:
    made = scaffold("my-kernel", language)
    assert not any(re.search("@[A-Z]+@", text) for text in made.values())
    parse_space(made["space.yaml"], tmp_path / "space.yaml")
    for name, text in made.items():
        if name.endswith(".py"):
            subprocess.run(
                [sys.executable, "-c", "import ast, sys; ast.parse(sys.stdin.read())"],
                input=text, text=True, check=True,
            )  # fmt: skip
