"""`init`: makes a folder with a tunable kernel that runs at once, for the user to change."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evotune.cli.options import Command, trust_option
from evotune.cli.terminal import Terminal, pass_terminal
from evotune.errors import UsageError
from evotune.util.commands import command_line

if TYPE_CHECKING:
    from evotune.languages import Template

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


class _Languages(click.Choice[str]):
    """The languages that `init` knows. They come from the backends, which are imported late, so
    help on another command need not import them."""

    @property
    def choices(self) -> tuple[str, ...]:
        from evotune.languages import own_languages

        return tuple(known.name for known in own_languages() if known.template)

    @choices.setter
    def choices(self, choices: tuple[str, ...]) -> None:
        """The base class sets them."""


@click.command(cls=Command, example="evotune init my-kernel --language cuda")
@click.argument("name", required=False)
@click.option(
    "--language",
    type=_Languages(()),
    help="The kernel's language; defaults to cpp.",
)
@click.option(
    "--from-kernel-tuner",
    "script",
    type=click.Path(path_type=Path),
    metavar="FILE.py",
    help="Run a Kernel Tuner script and import the CUDA kernel that it tunes. It runs with your "
    "rights, until it calls tune_kernel.",
)
@click.option(
    "--args",
    "script_arguments",
    metavar="ARGS",
    help="The script's own arguments, as one text: --args 'CUDA a100'.",
)
@click.option(
    "--kernel", metavar="KERNEL", help="Which kernel to import, if the script tunes several."
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="ARRAY",
    help="An array that the kernel writes, if evotune cannot tell. May be given several times.",
)
@trust_option
@pass_terminal
def init(
    terminal: Terminal,
    *,
    name: str | None,
    language: str | None,
    script: Path | None,
    kernel: str | None,
    outputs: tuple[str, ...],
    script_arguments: str | None,
) -> int:
    """Make a folder NAME with a tunable kernel of your own.

    The folder contains the kernel, problem.py with its reference, space.yaml, the schema for
    editors, a test and a README. It works unchanged; replace the computation by your own. With
    --from-kernel-tuner the kernel, its parameters and its sizes come from a script, and NAME
    defaults to the kernel's.
    """
    if script is not None:
        if language is not None:
            raise UsageError("--language and --from-kernel-tuner exclude each other")
        given = script_arguments or ""
        return _bring_in(terminal, name, script, kernel=kernel, outputs=outputs, given=given)
    if kernel is not None or outputs or script_arguments is not None:
        raise UsageError("--kernel, --output and --args need --from-kernel-tuner")
    if name is None:
        raise UsageError("name the kernel, as in `evotune init my-kernel`")
    from evotune.languages import own_languages

    language = language or next(own_languages()).name
    folder = _new_folder(name)
    if name in _template(language).taken:
        raise UsageError(
            f"{name}.py is the name of another file that init writes; choose another name"
        )
    made = scaffold(name, language)
    _write(terminal, folder, {file: text.encode() for file, text in made.items()})
    click.echo(f"cd {name}")
    click.echo(command_line("run", "space.yaml"))
    return 0


def _template(language: str) -> Template:
    from evotune.languages import language as known_language

    template = known_language(language).template
    assert template is not None
    return template


def _bring_in(
    terminal: Terminal,
    name: str | None,
    script: Path,
    *,
    kernel: str | None,
    outputs: Sequence[str],
    given: str,
) -> int:
    from evotune.extras import importer

    try:
        arguments = shlex.split(given)
    except ValueError as error:
        raise UsageError(f"--args {given!r}: {error}") from error
    if name is not None:
        _new_folder(name)  # refuses a wrong name before the script is read
    made = importer("kernel_tuner").import_script(
        script, name=name, kernel=kernel, outputs=outputs, arguments=arguments
    )
    folder = _new_folder(made.name)
    _write(terminal, folder, made.files)
    for note in made.notes:
        terminal.note(note)
    click.echo(f"cd {made.name}")
    click.echo(command_line("check", "space.yaml", "--device", "h200"))
    if made.unwritten:
        terminal.note(
            f"still to be written: compute, at {folder / 'problem.py'}:{made.unwritten}, which "
            "computes the kernel's result with PyTorch"
        )
    return 0


def _new_folder(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a kernel's name: expected a letter, then letters, digits, - or _"
        )
    folder = Path(name)
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{name} exists already; nothing was changed")
    return folder


def _write(terminal: Terminal, folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir()
    for file, content in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        terminal.note(f"wrote {path}")


def scaffold(name: str, language: str) -> dict[str, str]:
    """The text of every file in the new folder, by the file's name."""
    from evotune.space.reading.schema import schema_text

    entry = name.replace("-", "_").lower()
    own = _template(language)
    source = f"{name}{Path(own.kernel).suffix}"
    templates = {
        source: (own.package, own.kernel),
        "problem.py": ("evotune.cli", "problem.py"),
        "space.yaml": (own.package, own.space),
        f"test_{entry}.py": ("evotune.cli", "test_kernel.py"),
        "README.md": ("evotune.cli", "readme.md"),
    }
    values = {"@NAME@": name, "@ENTRY@": entry, "@FILE@": source, "@DEVICE@": own.arguments}
    made = {}
    for file, (package, template) in templates.items():
        text = files(package).joinpath("templates", template).read_text(encoding="utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        made[file] = text
    return {**made, "space.schema.json": schema_text()}
