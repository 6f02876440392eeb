"""`explain`: why a run's champion is fast, what holds it, and what to try next."""

from __future__ import annotations

from pathlib import Path

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
from evotune.cli.terminal import Terminal, pass_terminal, write_output


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
