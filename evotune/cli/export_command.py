"""`export`: writes the champions of runs as a Python package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from evotune.cli.options import (
    Command,
    complete_run,
    format_option,
    runs_dir_option,
    trust_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, write_output
from evotune.util.commands import install_command

if TYPE_CHECKING:
    from evotune.export.exporting import Exported


@click.command(cls=Command, example="evotune export latest -o attention_package")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="The package's folder: a new or an empty one.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The package's name; the space's name with _ for - if not given.",
)
@trust_option
@runs_dir_option
@format_option(("table", "json"), "table")
@pass_terminal
def export(
    terminal: Terminal,
    *,
    runs: tuple[str, ...],
    folder: Path,
    name: str | None,
    runs_dir: Path,
    style: str,
) -> int:
    """Write the confirmed champions of each RUN as a Python package.

    The package needs PyTorch and not evotune: `pip install DIR` works without a network. Of
    attention it serves the cases that a champion was measured to win, and PyTorch the rest; of
    another problem a champion serves its whole domain. Several runs of one problem on one device
    make one package, and each case gets the kernel with the greatest speedup. Instead of runs, RUN
    may be the folder of a portfolio: its kernels, served by its rule. The package has the
    machine code that was measured, its sources, and a certificate of checks and figures. The same
    runs give the same bytes.

    Exit code 1 when a run has no confirmed champion or when none is faster than PyTorch's
    attention, 3 when the compilers here make other machine code than the run measured.
    """
    from evotune.api.run import exported
    from evotune.util.commands import use

    found = exported(runs, folder, name, runs_dir)
    if style == "json":
        from evotune.report.formats import to_json

        write_output(to_json(_record(found)), "-")
    else:
        from evotune.cli.tables import print_tables, text_table

        rows = [("package", found.name), ("device", found.device)]
        rows += [("kernel", f"trial {trial} of run {run}") for run, trial in found.champions]
        rows += [("served", _served_text(found))]
        print_tables(terminal, [text_table(("", str(found.folder)), rows)], "-")
    for limit in filter(None, (found.slower_because, found.few_threads)):
        terminal.note(f"note: {limit}")
    for doubt in found.doubts:
        terminal.note(f"warning: {doubt}")
    terminal.note(f"install: {install_command(found.folder)}")
    terminal.note(f"use: {use(found.name, found.call)}")
    return 0


def _served_text(found: Exported) -> str:
    regions = f"{found.served} regions of cases"
    if not found.whole_domain:
        return f"{regions}; {found.name}.info()['served'] lists their sizes"
    surely = f"surely faster in {regions}" if found.served else "surely faster in no timed case"
    return f"all cases that the kernels were checked on; {surely}"


def _record(found: Exported) -> dict[str, object]:
    return {
        "folder": str(found.folder),
        "name": found.name,
        "call": found.call,
        "inputs": list(found.inputs),
        "device": found.device,
        "kernels": [{"run": run, "trial": trial} for run, trial in found.champions],
        "served": found.served,
        "slower_because": found.slower_because,
        "too_noisy": [{"run": run, "trial": trial} for run, trial in found.too_noisy],
    }
