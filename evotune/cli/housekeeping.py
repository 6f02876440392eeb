"""`list`, `rm` and `cache`: the shipped spaces, and the runs and kernels kept on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evotune.cli.options import (
    NOT_NEGATIVE,
    Command,
    complete_run,
    format_option,
    output_option,
    runs_dir_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, write_output
from evotune.errors import RunLocked

if TYPE_CHECKING:
    from rich.table import Table

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
    from evotune.cli.tables import print_tables
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
    from evotune.cli.tables import text_table
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

    Asks before it deletes. A run that a process is working on is refused. Of a link to a run, the
    run is deleted and the link too.
    """
    from evotune.api.run import RunFolder, open_run

    named = [open_run(text, runs_dir).folder for text in runs]
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
