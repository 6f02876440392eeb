"""`init`: a tunable kernel of the user's own, complete enough to run at once."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import click

from evotune.cli.options import Command
from evotune.cli.terminal import Terminal, pass_terminal
from evotune.command_line import command_line
from evotune.errors import UsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_TEMPLATES = {"cpp": "kernel.cpp", "cuda": "kernel.cu", "triton": "kernel_triton.py"}
_TAKEN = ("problem", "triton", "torch", "evotune")  # they would hide what is imported


@click.command(cls=Command, example="evotune init my-kernel --language cuda")
@click.argument("name")
@click.option(
    "--language",
    type=click.Choice(list(_TEMPLATES)),
    default="cpp",
    show_default=True,
    help="What the kernel is written in.",
)
@pass_terminal
def init(terminal: Terminal, *, name: str, language: str) -> int:
    """Make a folder NAME with a tunable kernel of your own.

    Holds the kernel, problem.py with its reference, space.yaml, the schema for editors and a
    test. It runs as it is; put your own computation in its place.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a kernel: expected a letter, then letters, digits, - or _"
        )
    folder = Path(name)
    if language == "triton" and name in _TAKEN:
        raise UsageError(f"{name}.py would be another file's name; take another one")
    if folder.exists():
        raise UsageError(f"{name} exists already; nothing was changed")
    made = scaffold(name, language)
    folder.mkdir()
    for file, text in made.items():
        (folder / file).write_text(text, encoding="utf-8")
        terminal.note(f"wrote {folder / file}")
    click.echo(f"cd {name}")
    click.echo(command_line("run", "space.yaml"))
    return 0


def scaffold(name: str, language: str) -> dict[str, str]:
    """File name -> text of everything in the folder."""
    from evotune.space.reading.schema import schema_text

    entry = name.replace("-", "_").lower()
    device = "" if language == "cpp" else ', "--device", "h200"'
    source = f"{name}{Path(_TEMPLATES[language]).suffix}"
    templates = {
        source: _TEMPLATES[language],
        "problem.py": "problem.py",
        "space.yaml": f"space_{language}.yaml",
        f"test_{entry}.py": "test_kernel.py",
    }
    folder = files("evotune.cli").joinpath("templates")
    made = {}
    for file, template in templates.items():
        text = folder.joinpath(template).read_text(encoding="utf-8")
        for mark, value in (("@NAME@", name), ("@ENTRY@", entry), ("@DEVICE@", device)):
            text = text.replace(mark, value)
        made[file] = text
    return {**made, "space.schema.json": schema_text()}
