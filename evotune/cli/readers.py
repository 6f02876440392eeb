"""`status`, `top` and `report`: show the content of a run's folder, without touching a device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evotune.cli.family_views import print_status, print_top, report_runs, watch_family
from evotune.cli.options import (
    Command,
    complete_run,
    format_option,
    optional_run_argument,
    output_option,
    run_argument,
    runs_dir_option,
)
from evotune.cli.terminal import (
    Terminal,
    pass_terminal,
    print_leaderboard,
    print_tables,
    text_table,
    write_output,
    write_pieces,
)
from evotune.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.run import Run
    from evotune.report.data import RunData
    from evotune.report.summary import RunSummary

_FACT_COLUMNS = len("trials per minute") + 3  # the width of the names before the facts in `status`


@click.command(cls=Command, example="evotune status latest --watch")
@optional_run_argument
@click.option(
    "--watch",
    is_flag=True,
    help="Follow a running run (the latest if none is named), also from another terminal; Ctrl-C "
    "stops following.",
)
@runs_dir_option
@format_option(("table", "json"), "table")
@output_option
@pass_terminal
def status(
    terminal: Terminal, *, run: str | None, watch: bool, runs_dir: Path, style: str, output: str
) -> int:
    """Show where RUN stands; without RUN, list all runs.

    Outcomes, best, pace, time by stage. In the list, (search) marks a figure of the search that
    no fresh process has confirmed.
    """
    if run is None and not watch:
        from evotune.cli.status_views import print_runs

        print_runs(terminal, runs_dir, style, output)
        return 0
    run = run or "latest"
    from evotune.api.family_run import open_family

    family = open_family(run, runs_dir)
    if family is not None and watch:
        watch_family(terminal, family)
    if family is not None:
        print_status(terminal, family, style, output)
        return 0
    if watch:
        from evotune.api.run import open_run
        from evotune.cli.status_views import watch as watch_run

        watch_run(terminal, open_run(run, runs_dir).folder)
    from evotune.report.summary import summarize

    summary = summarize(_load(run, runs_dir, rows=1))
    if style == "json":
        from evotune.report.formats import to_json

        write_output(to_json(summary.to_json()), output)
    else:
        print_tables(terminal, status_parts(summary, terminal.columns(output)), output)
    return 0


@click.command(cls=Command, example="evotune top latest -n 5")
@run_argument
@click.option(
    "-n", "count", type=click.IntRange(min=1), default=10, show_default=True, help="Rows to show."
)
@runs_dir_option
@format_option(("table", "json", "jsonl", "csv", "md"), "table")
@output_option
@pass_terminal
def top(
    terminal: Terminal, *, run: str, count: int, runs_dir: Path, style: str, output: str
) -> int:
    """Show the leaderboard of a run, or those of a family's winners."""
    from evotune.api.family_run import open_family

    family = open_family(run, runs_dir)
    if family is not None:
        print_top(terminal, family, count, style, output)
        return 0
    data = _load(run, runs_dir, rows=count)
    if style == "table":
        print_leaderboard(terminal, data, count, output)
    else:
        from evotune.report.formats import LEADERBOARDS

        write_output(LEADERBOARDS[style](data, count), output)
    return 0


@click.command(cls=Command, example="evotune report latest --format html -o report.html")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@runs_dir_option
@format_option(("html", "md", "csv", "json", "jsonl", "parquet", "t4"), "md")
@output_option
@pass_terminal
def report(
    terminal: Terminal, *, runs: tuple[str, ...], runs_dir: Path, style: str, output: str
) -> int:
    """Write runs as a page to read, or all trials for scripts.

    html is one file that opens offline; it takes several runs. csv and parquet have a row for each
    trial, json and jsonl every measurement and check; t4 is the auto-tuning community's results
    format. All of them include failed trials, with their reasons. For a run of more than 20,000
    trials a page has the best ones and a sample, and says so. Of a family html has all runs, and
    the other formats its winner's run if it has one winner.
    """
    if style == "html" and output == "-" and sys.stdout.isatty():
        raise UsageError("an HTML report is too large for a terminal: name a file with -o FILE")
    from evotune.api.family_run import open_family
    from evotune.api.run import open_run, report_pieces

    found: list[Run] = []
    for run in runs:
        family = open_family(run, runs_dir)
        found += [open_run(run, runs_dir)] if family is None else report_runs(family, style)
    pieces = report_pieces(found, style)
    write_pieces(pieces, output, binary=style == "parquet")
    if style == "html" and output != "-":
        terminal.note(f"wrote {output}")
    return 0


def _load(run: str, runs_dir: Path, rows: int | None = None) -> RunData:
    from evotune.api.run import open_run
    from evotune.report.data import RunData

    return RunData.load(open_run(run, runs_dir).folder, rows)


def status_parts(summary: RunSummary, width: int) -> Iterator[Table | str]:
    """Yields the tables and paragraphs of `evotune status`, for a terminal of this width."""
    from evotune.report import wording
    from evotune.report.front import devices_agreement, devices_table
    from evotune.report.screen import paragraph, plain

    yield text_table(("run", summary.id), list(_facts(summary, width)))
    counts = [(kind, str(count)) for kind, count in summary.outcomes.items()]
    if counts:
        yield text_table(("outcome", "trials"), counts, (False, True))
    devices = devices_table(summary.devices)
    if devices is not None:
        yield text_table(devices.columns, devices.rows, devices.numeric)
        yield plain(paragraph(devices_agreement(summary.devices), width))
    if summary.phases:
        spent = [(phase, wording.duration_text(s)) for phase, s in summary.phases.items()]
        yield text_table(("phase", "time"), spent, (False, True))
    for what, stages in (
        ("trials", summary.stages),
        ("confirmations", summary.confirmation_stages),
    ):
        rows = [
            (
                stage.stage,
                str(stage.trials),
                wording.duration_text(stage.total_s),
                wording.stage_text(stage.median_s),
            )
            for stage in stages
        ]
        if rows:
            yield text_table(("stage", what, "sum", "median"), rows, (False, True, True, True))


def _facts(summary: RunSummary, width: int) -> Iterator[tuple[str, str]]:
    from evotune.report import wording
    from evotune.report.screen import paragraph, plain

    worked_on = "" if summary.holder is None else f", by process {summary.holder}"
    yield "state", wording.state_text(summary.state) + worked_on
    yield "space", summary.space
    yield "device", summary.device_text
    remarks = {"beside": wording.beside_text(summary.beside), "missing": summary.unconfirmed}
    for name, text in remarks.items():
        lines = paragraph(text, width - _FACT_COLUMNS, indent=0) if text else ()
        for at, line in enumerate(plain(lines).splitlines()):
            yield "" if at else name, line
    yield "search", f"{summary.strategy}, seed {summary.seed}"
    minutes = "" if summary.minutes is None else f", at most {summary.minutes:g} minutes"
    yield "trials", f"{summary.done} of {summary.trials or '?'}{minutes}"
    yield "elapsed", wording.duration_text(summary.elapsed_s)
    if summary.trials_per_minute is not None:
        yield "trials per minute", f"{summary.trials_per_minute:.1f}"
    yield "duplicates", str(summary.duplicates)
    yield "confirmed", f"{summary.confirmed} ({summary.disqualified} failed)"
    if summary.best is not None:
        yield "best", wording.result_text(summary.best.figures)
        standing = "confirmed" if summary.best.confirmed else "not confirmed"
        yield "", f"trial {summary.best.number}, {standing}"
        configuration = wording.configuration_text(summary.best.configuration)
        lines = paragraph(configuration, width - _FACT_COLUMNS, indent=0)
        yield from (("", line) for line in plain(lines).splitlines())
