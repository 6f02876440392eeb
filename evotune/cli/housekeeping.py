"""`list`, `rm`, `cache`, `doctor` and `completion`: this machine, and what evotune stores on it.

They list the shipped spaces, delete runs, show the compiled kernels, check that the machine has
everything that tuning needs, and print the script by which a shell completes commands.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from evotune.cli.options import (
    NOT_NEGATIVE,
    Command,
    complete_run,
    format_option,
    output_option,
    runs_dir_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, print_tables, text_table, write_output
from evotune.errors import RunLocked

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.machine import Finding
    from evotune.api.run import RunFolder
    from evotune.space.document import SpaceDocument


_MIB = 1 << 20
_DAY_S = 86400.0


@click.command("list", cls=Command, example="evotune list")
@format_option(("table", "json"), "table")
@output_option
@pass_terminal
def list_command(terminal: Terminal, *, style: str, output: str) -> int:
    """List the spaces that ship with evotune, and the needs of each.

    The backends, problems and strategies of installed packages follow, if there are any.
    """
    from evotune import plugins
    from evotune.api.machine import shipped_spaces
    from evotune.space.document import load_space

    rows = []
    for name, path in shipped_spaces().items():
        document = load_space(path)
        rows.append({"name": name, "needs": _needs(document), "about": document.description})
    if style == "json":
        write_output(json.dumps(rows, indent=2) + "\n", output)
        return 0
    cells = [(row["name"], row["needs"], row["about"]) for row in rows]
    print_tables(terminal, _tables(cells), output)
    for line in plugins.broken():
        terminal.note(line)
    return 0


def _tables(cells: Sequence[tuple[str, ...]]) -> Iterator[Table | str]:
    from evotune.plugins import installed

    yield text_table(("space", "needs", "about"), cells)
    if found := installed():
        rows = [(plugin.name, plugin.kind, plugin.package) for plugin in found]
        yield text_table(("installed", "kind", "package"), rows)


def _needs(document: SpaceDocument) -> str:
    from evotune.languages import language

    needs = []
    for kernel in document.kernels:
        levels = [str(support) for support in kernel.supports if support.symbol == "arch"]
        needs.append(", ".join([language(kernel.language).needs, *levels]))
    return "; ".join(dict.fromkeys(needs))


@click.command(cls=Command, example="evotune rm latest")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@runs_dir_option
@pass_terminal
def rm(terminal: Terminal, *, runs: tuple[str, ...], yes: bool, runs_dir: Path) -> int:
    """Delete runs with all their results.

    Asks before it deletes. Refuses a run that a process is working on. For a link to a run, deletes
    both the run and the link.
    """
    from evotune.api.family_run import open_family
    from evotune.api.run import RunFolder, open_run

    families = {text: open_family(text, runs_dir) for text in runs}
    named = [(families[text] or open_run(text, runs_dir)).folder for text in runs]
    links = [folder.path for folder in named if folder.path.is_symlink()]
    named = [RunFolder(folder.path.resolve()) for folder in named]
    folders = list({folder.path: folder for folder in named}.values())
    for folder in folders:
        _refuse_held(folder)
    names = ", ".join(folder.id for folder in folders)
    if not yes:
        click.confirm(f"delete {names}?", abort=True, err=True)
    for folder in folders:
        _refuse_held(folder)  # it may have been resumed while the user was asked
        shutil.rmtree(folder.path)
        terminal.note(f"deleted {folder.id}")
    for link in links:
        link.unlink(missing_ok=True)
    return 0


def _refuse_held(folder: RunFolder) -> None:
    if (holder := folder.holder()) is not None:
        raise RunLocked(f"run {folder.id} is being worked on by process {holder}")


@click.command(cls=Command, example="evotune cache --older-than 30 --clear")
@click.option("--clear", is_flag=True, help="Delete them.")
@click.option(
    "--older-than",
    "days",
    type=NOT_NEGATIVE,
    default=0.0,
    show_default=True,
    metavar="DAYS",
    help="Only kernels older than this many days.",
)
@pass_terminal
def cache(terminal: Terminal, *, clear: bool, days: float) -> int:
    """Show the folder of compiled kernels, and their number.

    --clear deletes them; a kernel is compiled again when it is needed. The environment variable
    EVOTUNE_CACHE_DIR sets the folder.
    """
    from evotune.util.files import default_cache_dir

    folder = default_cache_dir()
    before_s = time.time() - days * _DAY_S
    found = [
        (path, about.st_size)
        for path, about in _files(folder)
        if not days or about.st_mtime < before_s
    ]
    kernels = sum(path.parent.parent.name == "objects" for path, _ in found)
    noun = "kernel" if kernels == 1 else "kernels"
    words = f"{kernels:,} compiled {noun}, {sum(size for _, size in found) / _MIB:,.1f} MiB"
    if clear:
        for path, _ in found:
            path.unlink(missing_ok=True)
    click.echo(f"{'deleted from' if clear else 'in'} {folder}: {words}")
    return 0


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The cache's own files, objects and jobs; anything else in the folder stays. Another process
    may delete or rename some meanwhile."""
    for part in ("objects", "jobs"):
        for path in sorted((folder / part).glob("??/*")):
            with contextlib.suppress(FileNotFoundError):
                about = path.stat()
                if stat.S_ISREG(about.st_mode):
                    yield path, about


_ENVIRONMENT = 3


@click.command(cls=Command, example="evotune doctor --format json")
@format_option(("table", "json"), "table")
@output_option
@pass_terminal
def doctor(terminal: Terminal, style: str, output: str) -> int:
    """Check that this machine has everything that tuning needs.

    Packages, compiler, CPU, GPUs, cache. The exit code is 3 when something must be fixed.
    """
    from evotune.api.machine import examine

    found = examine()
    if style == "json":
        from evotune.report.formats import to_json

        usable = all(finding.status.fine for finding in found)
        findings = [finding.to_json() for finding in found]
        write_output(to_json({"usable": usable, "findings": findings}), output)
    else:
        print_tables(terminal, _parts(found), output)
    return 0 if all(finding.status.fine for finding in found) else _ENVIRONMENT


def _parts(found: Sequence[Finding]) -> Iterator[Table | str]:

    rows = [(finding.name, finding.status.value, finding.detail) for finding in found]
    yield text_table(("what", "status", "found"), rows)
    wrong = [finding for finding in found if not finding.status.fine]
    yield "everything needed is here" if not wrong else f"{len(wrong)} to fix:"
    for finding in wrong:
        yield f"  {finding.name}: {finding.fix or finding.detail}"
    optional = [finding for finding in found if finding.status.fine and finding.fix]
    if optional:
        yield "for more:"
    for finding in optional:
        yield f"  {finding.name}: {finding.fix}"


_VARIABLE = "_EVOTUNE_COMPLETE"


@click.command(cls=Command, example="evotune completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> int:
    """Print the completion script of a SHELL.

    bash and zsh: evaluate it in the shell's start-up file. fish: save it as
    ~/.config/fish/completions/evotune.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(context.find_root().command, {}, "evotune", _VARIABLE)
    # Not `source()`: for bash it starts bash to ask for its version, and every bash since 2009 is
    # new enough.
    text = made.source_template % made.source_vars()
    sys.stdout.write(text.strip() + "\n")
    return 0
