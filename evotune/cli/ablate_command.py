"""`ablate`: measures the worth of each choice in a run's champion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evotune.cli.options import (
    Command,
    format_option,
    output_option,
    run_argument,
    runs_dir_option,
    trust_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, write_output

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.run import AblationRow


@click.command(cls=Command, example="evotune ablate latest")
@run_argument
@click.option(
    "--trial",
    type=click.IntRange(min=0),
    help="The trial to change; the leaderboard's first if not given.",
)
@trust_option
@runs_dir_option
@format_option(("table", "json"), "table")
@output_option
@pass_terminal
def ablate(
    terminal: Terminal,
    *,
    run: str,
    trial: int | None,
    runs_dir: Path,
    style: str,
    output: str,
) -> int:
    """Measure the worth of each choice of RUN's champion.

    Sets one parameter at a time to the space's default, to a neighbouring value or, if it is a
    number, to its smallest one, checks the changed candidate and times it in turn with the
    champion. The rows are stored in the run: the HTML report shows them.
    """
    from evotune.api.run import open_run

    opened = open_run(run, runs_dir)
    chosen = opened.candidate(trial)
    which = f"trial {chosen.number} of run {opened.id}"
    terminal.note(f"changing {which}, one parameter at a time")
    found = []
    for item in opened.ablating(chosen):
        found.append(item)
        terminal.note(" ".join(_cells(item)))
    if style == "json":
        from evotune.report.formats import to_json

        write_output(to_json([item.to_json() for item in found]), output)
    else:
        from evotune.cli.tables import print_tables

        print_tables(terminal, _parts(found), output)
    return 0


def _parts(found: list[AblationRow]) -> Iterator[Table | str]:
    from evotune.cli.tables import text_table

    ranked = sorted(found[1:], key=lambda item: (item.ratio is None, item.ratio))
    yield text_table(
        ("change", "why", "speed against the champion [95%]"),
        [_cells(item) for item in (*found[:1], *ranked)],
    )


def _cells(item: AblationRow) -> tuple[str, str, str]:
    from evotune.report.wording import change_text, ratio_text

    row = item.fact()
    return change_text(row), row.why, ratio_text(row)
