"""Options that several commands share, and the command class that adds the global ones.

The functions `complete_…` return the values that a shell offers for completion.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from evotune.cli.terminal import Terminal, say
from evotune.util.commands import RUNS_DIR

Function = TypeVar("Function", bound=Callable[..., Any])
_TRUST = "evotune.trust"  # in a context: whether either name of the flag was given


def global_options() -> list[click.Option]:
    """The options --color, -q and -v, which may come before a command's name or after it."""
    return [
        click.Option(
            ["--color"],
            type=click.Choice(["auto", "always", "never"]),
            callback=_set_color,
            expose_value=False,
            help="Colour the output; auto also honours NO_COLOR.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            callback=_set_quiet,
            expose_value=False,
            help="No progress, only results and errors.",
        ),
        click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            callback=_set_verbose,
            expose_value=False,
            help="More detail; tracebacks of internal errors.",
        ),
    ]


class Command(click.Command):
    """A command whose help ends with an example, and which takes the global options."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        kwargs["epilog"] = f"\b\nExample:\n  {example}"
        kwargs["params"] = [*kwargs.get("params", ()), *global_options()]
        super().__init__(*args, **kwargs)


class _Finite(click.FloatRange):
    """A finite number: FloatRange alone lets NaN and infinity through."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


STRATEGIES = "evolution, local, random, exhaustive or nsga2"  # a test compares it with the catalog
POSITIVE = _Finite(min=0, min_open=True)
NOT_NEGATIVE = _Finite(min=0)


def complete_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completes to `latest` and the folder's runs, newest first, or to paths if none of these
    matches."""
    from evotune.api.family_run import all_families
    from evotune.api.run import all_runs

    runs_dir = context.params.get("runs_dir") or RUNS_DIR
    known = [run.id for run in all_runs(runs_dir)] + [each.id for each in all_families(runs_dir)]
    names = ["latest", *reversed(known)]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def complete_device(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completes to the values of `--device`: `auto`, and the names that each backend offers."""
    from evotune.api.machine import device_names

    return [CompletionItem(name) for name in device_names() if name.startswith(incomplete)]


def complete_strategy(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completes to the names of strategies."""
    from evotune.api.machine import strategy_names

    return [CompletionItem(name) for name in strategy_names() if name.startswith(incomplete)]


def complete_space(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completes to the names of shipped spaces, their family, and files."""
    from evotune.api.family_run import FAMILY
    from evotune.api.machine import shipped_spaces

    names = [FAMILY, *shipped_spaces()]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [*found, CompletionItem(incomplete, type="file")]


def space_argument(*, required: bool = True) -> Callable[[Function], Function]:
    """The argument SPACE: a file, or the name of a space that ships with evotune."""

    return click.argument("space", required=required, shell_complete=complete_space)


def trust_option(function: Function) -> Function:
    """Adds --trust, which executes code from elsewhere without asking. Its old name --trust-problem
    is hidden, and still works."""
    for name in ("--trust-problem", "--trust"):
        function = click.option(
            name,
            is_flag=True,
            hidden=name != "--trust",
            expose_value=False,
            callback=_trust,
            help="Execute kernels and problems even if they lie outside this folder or came with "
            "a run's folder.",
        )(function)
    return function


def runs_dir_option(function: Function) -> Function:
    return click.option(
        "--runs-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=RUNS_DIR,
        show_default=True,
        help="Folder that holds the runs.",
    )(function)


def run_argument(function: Function) -> Function:
    """Adds the argument RUN: a run's id, a unique prefix of an id, a path, or `latest`."""
    return click.argument("run", metavar="RUN", shell_complete=complete_run)(function)


def optional_run_argument(function: Function) -> Function:
    """Adds the argument RUN, which may be omitted; the command then gets None."""
    return click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_run)(
        function
    )


def _device_option(help_text: str) -> Callable[[Function], Function]:
    return click.option(
        "--device",
        default="auto",
        show_default=True,
        metavar="auto|cpu[:N]|cuda:N|NAME",
        callback=lambda context, option, value: value.lower(),
        shell_complete=complete_device,
        help=help_text,
    )


device_option = _device_option(
    "Where to run: auto takes the GPU if there is one; cpu:N measures with N threads; a NAME (l4, "
    "a100, h100, rtx4090, …) demands that model."
)
compile_device_option = _device_option(
    "The device to compile for; a GPU's NAME (l4, a100, h100, rtx4090, …) needs no GPU."
)
spaces_device_option = _device_option(
    "The device for which spaces are named; a GPU's NAME (l4, a100, h100, rtx4090, …) needs no GPU."
)


class _Gpus(click.ParamType[int | str]):
    name = "all|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "all" or isinstance(value, int):
            return value
        if value.isascii() and value.isdecimal() and len(value) < 5 and 1 <= int(value) <= 1024:
            return int(value)
        self.fail(f"expected all or a number of GPUs (1 or more), not {value!r}", param, ctx)


gpus_option = click.option(
    "--gpus",
    type=_Gpus(),
    metavar="all|N",
    help="Measure on the first N GPUs at once, or on all that --device allows.",
)


cluster_option = click.option(
    "--cluster",
    metavar="tcp://HOST:PORT|local:N",
    help="Measure on the workers of this Dask scheduler, or on N workers of this machine.",
)


def cases_option(help_text: str, *, required: bool = False) -> Callable[[Function], Function]:
    """The option --cases FILE (`evotune.space.reading.case_file`)."""
    return click.option(
        "--cases",
        metavar="FILE",
        required=required,
        type=click.Path(path_type=Path),
        help=help_text,
    )


def format_option(names: Sequence[str], default: str) -> Callable[[Function], Function]:
    return click.option(
        "--format",
        "style",
        type=click.Choice(list(names)),
        default=default,
        show_default=True,
        help="How to write the result.",
    )


def output_option(function: Function) -> Function:
    return click.option(
        "-o",
        "--output",
        metavar="FILE|-",
        default="-",
        show_default=True,
        help="Where to write it; - is standard output.",
    )(function)


def _trust(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if ctx.resilient_parsing:
        return
    from evotune.user_code import trust

    given = ctx.meta[_TRUST] = value or ctx.meta.get(_TRUST, False)
    trust.ask = (lambda paths: True) if given else _ask


def _ask(paths: Sequence[Path]) -> bool:
    """Asks at the terminal whether to execute the files. Without a terminal the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say("This would execute code that lies outside this folder or came with a run's folder:")
    for path in paths:
        say(f"  {path}")
    try:
        return click.confirm("Execute it?", err=True)
    except click.Abort:
        return False


def _terminal(ctx: click.Context) -> Terminal:
    return ctx.find_root().ensure_object(Terminal)


def _set_color(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        _terminal(ctx).color = value


def _set_quiet(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    _terminal(ctx).quiet |= value


def _set_verbose(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    _terminal(ctx).verbose |= value
