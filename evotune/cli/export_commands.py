"""`export`: champions as a Python package. `portfolio`: few kernels that serve many cases."""

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
    complete_run,
    device_option,
    format_option,
    runs_dir_option,
    space_argument,
    trust_option,
)
from evotune.cli.terminal import Terminal, pass_terminal, print_tables, text_table, write_output
from evotune.errors import UsageError
from evotune.util.commands import install_command

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.api.case_portfolio import CasePortfolio
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
    help="The package's name; defaults to the space's name with _ for -.",
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

    The package needs PyTorch and not evotune: `pip install DIR` works without a network. For
    attention it serves the cases that a champion was measured to win, and PyTorch serves the rest;
    for another problem a champion serves its whole domain. Several runs of one problem on one
    device make one package, and each case gets the kernel with the greatest speedup. Instead of
    runs, RUN may be the folder of a portfolio: its kernels, served by its rule. The package has the
    machine code that was measured, its sources, and a certificate of checks and figures. The same
    runs give the same bytes. Of a run of Python callables the configuration is written, as
    configuration.json.

    Exit code 1 when a run has no confirmed champion or when none is faster than PyTorch's
    attention, 3 when the compilers here make other machine code than the run measured.
    """
    from evotune.api.run import exported
    from evotune.export.configuration_file import FILE
    from evotune.util.commands import use

    found = exported(runs, folder, name, runs_dir)
    if style == "json":
        from evotune.report.formats import to_json

        write_output(to_json(_record(found)), "-")
    elif found.configuration is not None:
        rows = [(name, str(value)) for name, value in found.configuration.items()]
        print_tables(terminal, [text_table(("", str(found.folder / FILE)), rows)], "-")
    else:
        rows = [("package", found.name), ("device", found.device)]
        rows += [("kernel", f"trial {trial} of run {run}") for run, trial in found.champions]
        rows += [("served", _served_text(found))]
        print_tables(terminal, [text_table(("", str(found.folder)), rows)], "-")
    for limit in filter(None, (found.slower_because, found.few_threads)):
        terminal.note(f"note: {limit}")
    for doubt in found.doubts:
        terminal.note(f"warning: {doubt}")
    if found.configuration is not None:
        terminal.note("callables are exported as a configuration: pass it to your function")
        return 0
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
        "configuration": found.configuration,
        "too_noisy": [{"run": run, "trial": trial} for run, trial in found.too_noisy],
    }


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
    help=f"Keep at most this many kernels; defaults to {_KERNELS}.",
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
    help="Continue the portfolio in this folder, with a new -k, --trials or --minutes if given.",
)
@click.option(
    "--held-out",
    type=click.FloatRange(min=0, max=1, max_open=True),
    help="The share of the cases that is held out to judge the rule, if there are 20 or more; "
    f"defaults to {_HELD_OUT:g}.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help="Total trials of all searches; without it each search has the space's own budget.",
)
@click.option(
    "--minutes", type=POSITIVE, help="Minutes for the whole portfolio, over all sessions."
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed of searches and choices; defaults to 0."
)
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

    Searches for cases that differ; each search is an ordinary run in RUNS. Measures all champions
    on all cases, each checked and timed in alternation with the baseline. Searches again for cases
    that all champions serve badly. Then keeps the kernels with the greatest mean speedup, and
    learns a short list of regions: the first region that contains a case names its kernel, and
    PyTorch serves all other cases. The rule is judged on held-out cases; parts that lose there are
    cut out.

    `attention` names all shipped attention spaces. For each search the spaces that can compute its
    case race. A portfolio has one problem and one dtype: evotune takes the most frequent pair in
    the list of cases, and names the cases that it leaves out.

    The same command continues an interrupted portfolio and repeats no finished search or
    measurement. `evotune export RUNS` makes a package of the portfolio.
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
        print_tables(terminal, _parts(built))


def _parts(built: CasePortfolio) -> Iterator[Table | str]:

    rule, figures, kernels = built.tables()
    yield f"{built.found.space} on {built.found.device}: the first line that holds a case decides"
    yield text_table(rule.columns, rule.rows, rule.numeric)
    yield text_table(figures.columns, figures.rows, figures.numeric)
    yield from built.remarks()
    if kernels.rows:
        yield text_table(kernels.columns, kernels.rows, kernels.numeric)
