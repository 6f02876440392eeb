"""`portfolio`: few kernels that serve many cases, and the rule that chooses among them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evotune.cli.options import (
    POSITIVE,
    Command,
    cases_option,
    device_option,
    format_option,
    space_argument,
    trust_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, write_output
from evotune.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.case_portfolio import CasePortfolio

_KERNELS = 8
_HELD_OUT = 0.2


@click.command(
    cls=Command,
    example="evotune portfolio attention-wgmma --cases cases.yaml -k 8 -o portfolio --minutes 60",
)
@space_argument(required=False)
@cases_option(
    "The cases to serve, with their weights (`count`): a list in YAML or JSON, or the miss log of "
    "an exported package."
)
@click.option(
    "-k",
    "kernels",
    type=click.IntRange(1, 64),
    help=f"Keep at most this many kernels; {_KERNELS} if not given.",
)
@click.option(
    "-o",
    "--output",
    "runs_dir",
    metavar="RUNS",
    type=click.Path(file_okay=False, path_type=Path),
    help="The portfolio's folder, with the runs of its searches.",
)
@click.option(
    "--resume",
    metavar="RUNS",
    type=click.Path(file_okay=False, path_type=Path),
    help="Go on with the portfolio in this folder, with a new -k, --trials or --minutes if given.",
)
@click.option(
    "--held-out",
    type=click.FloatRange(min=0, max=1, max_open=True),
    help="The share of 20 and more cases that no search sees and that judges the rule; "
    f"{_HELD_OUT:g} if not given.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help="Trials of all searches together; if not given, each search has the space's own budget.",
)
@click.option("--minutes", type=POSITIVE, help="Minutes of the whole portfolio, resumed or not.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of searches and choices; 0.")
@trust_option
@device_option
@format_option(("table", "json", "md"), "table")
@pass_terminal
def portfolio(
    terminal: Terminal,
    /,
    *,
    space: str | None,
    cases: Path | None,
    kernels: int | None,
    runs_dir: Path | None,
    resume: Path | None,
    held_out: float | None,
    trials: int | None,
    minutes: float | None,
    seed: int | None,
    device: str,
    style: str,
) -> int:
    """Find a few kernels that together cover a list of cases.

    A rule picks one of them for each call.

    Searches where cases differ, each search an ordinary run in RUNS. Measures all champions on all
    cases, each checked and timed in turn with the baseline. Further searches go where all champions
    serve a case badly. Then keeps the kernels with the greatest mean speedup, and learns a short
    list of regions: the first that holds a case names its kernel, and PyTorch serves all other
    cases. Held-out cases judge the rule; a part that loses there is cut out.

    The same command goes on after it was interrupted: what was searched and measured is kept.
    `evotune export RUNS` makes a package of the portfolio.
    """
    from evotune.api.case_portfolio import new_portfolio, resumed_portfolio
    from evotune.cli.progress import show_progress

    command = ("evotune", *sys.argv[1:])
    watched = functools.partial(show_progress, terminal)
    if resume is not None:
        given = {"SPACE": space, "--cases": cases, "-o": runs_dir, "--held-out": held_out}
        given |= {"--seed": seed, "--device": None if device == "auto" else device}
        beside = [name for name, value in given.items() if value is not None]
        if beside:
            raise UsageError(
                f"leave out {', '.join(beside)}: --resume takes such settings from the earlier "
                "portfolio"
            )
        built = resumed_portfolio(
            resume,
            watched,
            terminal.note,
            kernels=kernels,
            trials=trials,
            minutes=minutes,
            command=command,
        )
    else:
        if space is None or cases is None or runs_dir is None:
            needed = (("SPACE", space), ("--cases FILE", cases), ("-o RUNS", runs_dir))
            missing = [name for name, value in needed if value is None]
            missed = f"name {', '.join(missing)}; or --resume RUNS for an earlier portfolio"
            raise UsageError(missed)
        built = new_portfolio(
            space,
            cases,
            watched,
            terminal.note,
            runs_dir=runs_dir,
            kernels=_KERNELS if kernels is None else kernels,
            held_out_share=_HELD_OUT if held_out is None else held_out,
            trials=trials,
            minutes=minutes,
            seed=seed or 0,
            device=device,
            command=command,
        )
    found, folder = built.found, resume or runs_dir
    assert folder is not None
    _print(terminal, built, style)
    sys.stdout.flush()
    terminal.note(f"portfolio: {folder / 'portfolio.json'}")
    if found.rule:
        from evotune.util.commands import command_line, default_name, offered_name

        name = offered_name(found.space)
        named = () if name == default_name(found.space) else ("--name", name)
        words = ("export", folder, "-o", f"{name}_package", *named)
        terminal.note(f"export: {command_line(*words)}")
    return 0 if found.rule else 1


def _print(terminal: Terminal, built: CasePortfolio, style: str) -> None:
    if style == "json":
        write_output(built.to_json(), "-")
    elif style == "md":
        write_output(built.markdown(), "-")
    else:
        from evotune.cli.tables import print_tables

        print_tables(terminal, _parts(built))


def _parts(built: CasePortfolio) -> Iterator[Table | str]:
    from evotune.cli.tables import text_table

    rule, figures, kernels = built.tables()
    yield f"{built.found.space} on {built.found.device}: the first line that holds a case decides"
    yield text_table(rule.columns, rule.rows, rule.numeric)
    yield text_table(figures.columns, figures.rows, figures.numeric)
    yield from built.remarks()
    if kernels.rows:
        yield text_table(kernels.columns, kernels.rows, kernels.numeric)
