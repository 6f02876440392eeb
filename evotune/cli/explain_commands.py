"""`explain` and `ablate`: why a run's champion is fast, and the worth of each of its choices.

`explain` also says what holds the champion, and what to try next.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evotune.cli.options import (
    POSITIVE,
    Command,
    format_option,
    output_option,
    run_argument,
    runs_dir_option,
    trust_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, print_tables, text_table, write_output

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.run import AblationRow


@click.command(cls=Command, example="evotune explain latest --against baseline")
@run_argument
@click.option(
    "--trial",
    type=click.IntRange(min=0),
    help="The trial to explain; the leaderboard's first if not given.",
)
@click.option(
    "--against",
    metavar="baseline|default|N|RUN[:N]",
    default="",
    help="Also list the differences in the machine from the baseline, the space's default, trial "
    "N, or a trial of another run.",
)
@click.option(
    "--measure/--no-measure",
    default=None,
    help="Measure the missing parts: counters, and each choice in turn with the trial. Without "
    "either option they are measured if this machine has the run's device. --no-measure compiles "
    "and launches nothing.",
)
@click.option(
    "--effects/--no-effects",
    default=True,
    show_default=True,
    help="Whether measuring includes each choice in turn with the trial: that takes longest.",
)
@click.option(
    "--minutes",
    type=POSITIVE,
    help="Stop measuring after this many minutes. The time of --try is not counted. The "
    "explanation names what was not measured, and the next call measures it.  [default:  3 on a "
    "CPU, no limit on a GPU]",
)
@click.option(
    "--try",
    "tries",
    is_flag=True,
    help="Measure the suggestions that are configurations of the space, in turn with the trial.",
)
@trust_option
@runs_dir_option
@format_option(("text", "json", "html"), "text")
@output_option
@pass_terminal
def explain(
    terminal: Terminal,
    *,
    run: str,
    trial: int | None,
    against: str,
    measure: bool | None,
    effects: bool,
    minutes: float | None,
    tries: bool,
    runs_dir: Path,
    style: str,
    output: str,
) -> int:
    """Explain what limits RUN's champion, and what to try.

    Names the part of the device that limits it, by counters, machine code and ceilings; the worth
    of each choice; the parameters that decide over the space; and at most five things to try, each
    with an estimate. Measurements are stored in the run, so that it can be explained again without
    its device. A part that was not measured is named with the reason.
    """
    from evotune.api.run import open_run

    found = open_run(run, runs_dir).explain(
        trial,
        against=against,
        measure=measure,
        effects=effects,
        minutes=minutes,
        tries=tries,
        on_note=terminal.note,
    )
    if style == "json":
        from evotune.report.formats import to_json

        write_output(to_json(found.to_json()), output)
    elif style == "html":
        from evotune.explain.explanation import html_page_of

        write_output(html_page_of(found), output)
    else:
        write_output(found.text(terminal.columns(output)), output)
    return 0


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
        print_tables(terminal, _parts(found), output)
    return 0


def _parts(found: list[AblationRow]) -> Iterator[Table | str]:

    ranked = sorted(found[1:], key=lambda item: (item.ratio is None, item.ratio))
    yield text_table(
        ("change", "why", "speed against the champion [95%]"),
        [_cells(item) for item in (*found[:1], *ranked)],
    )


def _cells(item: AblationRow) -> tuple[str, str, str]:
    from evotune.report.wording import change_text, ratio_text

    row = item.fact()
    return change_text(row), row.why, ratio_text(row)
