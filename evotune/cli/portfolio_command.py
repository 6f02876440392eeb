"""`portfolio`: few kernels that serve many cases, and the rule that chooses among them."""

from __future__ import annotations

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

    from evotune.portfolios.portfolio_file import Portfolio
    from evotune.portfolios.request import PortfolioRequest

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
    from evotune.cli.progress import show_progress
    from evotune.portfolios.building import build_portfolio
    from evotune.portfolios.request import stored_request

    command = ("evotune", *sys.argv[1:])
    if resume is not None:
        given = {"SPACE": space, "--cases": cases, "-o": runs_dir, "--held-out": held_out}
        given |= {"--seed": seed, "--device": None if device == "auto" else device}
        beside = [name for name, value in given.items() if value is not None]
        if beside:
            raise UsageError(
                f"leave out {', '.join(beside)}: --resume takes such settings from the earlier "
                "portfolio"
            )
        request = stored_request(
            resume, most_kernels=kernels, trials=trials, minutes=minutes, command=command
        )
    else:
        request = _request(
            space, cases, kernels=kernels, runs_dir=runs_dir, held_out=held_out, trials=trials,
            minutes=minutes, seed=seed, device=device, command=command,
        )  # fmt: skip
    found = build_portfolio(request, observing=lambda: show_progress(terminal), say=terminal.note)
    _print(terminal, found, style)
    sys.stdout.flush()
    terminal.note(f"portfolio: {request.runs_dir / 'portfolio.json'}")
    if found.rule:
        from evotune.util.commands import command_line, default_name, offered_name

        name = offered_name(found.space)
        named = () if name == default_name(found.space) else ("--name", name)
        words = ("export", request.runs_dir, "-o", f"{name}_package", *named)
        terminal.note(f"export: {command_line(*words)}")
    return 0 if found.rule else 1


def _request(
    space: str | None,
    cases: Path | None,
    *,
    kernels: int | None,
    runs_dir: Path | None,
    held_out: float | None,
    trials: int | None,
    minutes: float | None,
    seed: int | None,
    device: str,
    command: tuple[str, ...],
) -> PortfolioRequest:
    from evotune.portfolios.request import PortfolioRequest
    from evotune.space.reading.case_file import read_cases

    if space is None or cases is None or runs_dir is None:
        needed = (("SPACE", space), ("--cases FILE", cases), ("-o RUNS", runs_dir))
        missing = [name for name, value in needed if value is None]
        raise UsageError(f"name {', '.join(missing)}; or --resume RUNS for an earlier portfolio")
    return PortfolioRequest(
        space=space,
        cases=read_cases(cases),
        runs_dir=runs_dir,
        most_kernels=_KERNELS if kernels is None else kernels,
        held_out=_HELD_OUT if held_out is None else held_out,
        trials=trials,
        minutes=minutes,
        seed=0 if seed is None else seed,
        device=device,
        command=command,
    )


def _print(terminal: Terminal, found: Portfolio, style: str) -> None:
    if style == "json":
        from evotune.portfolios.portfolio_file import to_json

        write_output(to_json(found).decode(), "-")
    elif style == "md":
        from evotune.portfolios.portfolio_file import markdown

        write_output(markdown(found), "-")
    else:
        from evotune.cli.tables import print_tables

        print_tables(terminal, _parts(found))


def _parts(found: Portfolio) -> Iterator[Table | str]:
    from evotune.cli.tables import text_table
    from evotune.portfolios import portfolio_file as text

    yield f"{found.space} on {found.device}: the first line that holds a case decides"
    yield text_table(text.RULE_COLUMNS, text.rule_rows(found), (True, False, True, True, True))
    yield text_table(
        text.FIGURE_COLUMNS, text.figure_rows(found), (False, True, True, True, True, True)
    )
    yield from text.remarks(found)
    if found.kernels:
        yield text_table(text.KERNEL_COLUMNS, text.kernel_rows(found), (True, True))
