"""`record`, `tune-model`: run a script to list its calls of attention, and to tune for them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path

import click

from evotune.cli.options import POSITIVE, Command, spaces_device_option
from evotune.cli.terminal import Terminal, pass_terminal, write_output
from evotune.errors import UsageError
from evotune.util.commands import command_line

_OUTPUT = ("-o", "--output")
_FAILED = 1
_UNDECIDED = 6


@click.command(
    cls=Command,
    example="evotune record predict.py --batch 4 -o cases.yaml",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("script", metavar="SCRIPT", type=click.Path())
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    *_OUTPUT,
    metavar="FILE|-",
    help="The file of cases to write, YAML or JSON by its name; - is standard output.",
)
@spaces_device_option
@pass_terminal
def record(
    terminal: Terminal, *, script: str, arguments: tuple[str, ...], output: str | None, device: str
) -> int:
    """Run SCRIPT and record its calls of attention.

    It runs as `python SCRIPT ARGS` would, and its results stay as they are. At its end stderr shows
    a table of the calls, with the shipped spaces that can compute each, or why none can. FILE lists
    them for `run SPACE --cases`. All arguments after SCRIPT go to the script, except `-o FILE` at
    the end when it does not stand before SCRIPT. The exit code is the script's. Ctrl-C writes what
    was recorded so far. Child processes are not recorded.
    """
    if output is None:
        arguments, last = _options_at_the_end(arguments, dict.fromkeys(_OUTPUT, "-o"))
        output = last.get("-o")
    from evotune.api.recording_calls import Calls, recording, require_device, run_script

    require_device(device)
    if not Path(script).is_file():
        raise UsageError(f"{script}: no such file")
    path = None if output in (None, "-") else Path(str(output)).absolute()
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"cannot write {output}: there is no folder {path.parent}")
    calls = Calls(device)
    try:
        with recording(device) as calls:
            return run_script(script, arguments)
    finally:
        if path is not None:
            calls.save(path)
        elif output == "-":
            write_output(calls.text(), output)
        for line in str(calls).splitlines():
            terminal.note(line)


@click.command(
    "tune-model",
    cls=Command,
    example="evotune tune-model predict.py --batch 4 --minutes 20 -o tuned_model",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("script", metavar="SCRIPT", type=click.Path())
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--minutes",
    type=POSITIVE,
    help="Minutes for the search, over all sessions; defaults to 10.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help="Total trials of the search, in place of --minutes.",
)
@click.option(
    *_OUTPUT,
    metavar="DIR",
    help="Folder for the runs, the package and the figures; defaults to tuned_model.",
)
@click.option(
    "--misses-only",
    is_flag=True,
    help="Tune for the calls that were not served the last time; the package then serves both.",
)
@pass_terminal
def tune_model(
    terminal: Terminal,
    *,
    script: str,
    arguments: tuple[str, ...],
    minutes: float | None,
    trials: float | None,
    output: str | None,
    misses_only: bool,
) -> int:
    """Tune attention for SCRIPT, and measure what it gains.

    Runs `python SCRIPT ARGS` several times. Records its calls of attention, tunes the shipped
    spaces for them, exports the winners into DIR/package, checks the package, and times each call
    without and with it, where the script makes it. Then runs the whole script 20 times in fresh
    processes, without and with the package in turn, unless that takes longer than the search may.
    Prints one screen: calls, gains with their 95% intervals, what is not served and why.

    The same command continues after Ctrl-C: recorded calls and finished runs are kept. All
    arguments after SCRIPT go to the script, except `--minutes M`, `--trials N`, `-o DIR` and
    `--misses-only` at the end. What the script prints goes to stderr in its first run, later to
    DIR/script.log. The exit code is 1 if no kernel wins, a result is wrong or the script fails.
    """
    from evotune.api.family_run import all_families
    from evotune.api.model_tuning import FOLDER
    from evotune.api.script_tuning import tune_script
    from evotune.cli.progress import show_progress

    names = {**dict.fromkeys(_OUTPUT, "-o"), "--minutes": "--minutes", "--trials": "--trials"}
    arguments, last = _options_at_the_end(arguments, names, flag="--misses-only")
    folder = Path(last.get("-o", output or FOLDER))
    minutes = _positive("--minutes", last.get("--minutes"), minutes)
    trials = _positive("--trials", last.get("--trials"), trials)
    try:
        found = tune_script(
            script,
            arguments,
            folder,
            functools.partial(show_progress, terminal),
            terminal.note,
            minutes=minutes,
            trials=None if trials is None else int(trials),
            misses_only=misses_only or "--misses-only" in last,
        )
    except KeyboardInterrupt:
        terminal.note(f"the same command continues: {command_line('tune-model', script, '…')}")
        raise
    write_output(f"{found}\n", "-")
    if found.fault or not found:
        undecided = any(family.undecided for family in all_families(folder / "runs"))
        return _UNDECIDED if undecided and not found.fault else _FAILED
    return 0


def _options_at_the_end(
    arguments: tuple[str, ...], names: Mapping[str, str], flag: str = ""
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The arguments without the options `names` at their end, and the values of these by the
    option's usual name."""
    found: dict[str, str] = {}
    while arguments:
        name = names.get(arguments[-2], "") if len(arguments) > 1 else ""
        if flag and arguments[-1] == flag:
            arguments, found = arguments[:-1], {flag: "", **found}
        elif name and name not in found:
            arguments, found = arguments[:-2], {name: arguments[-1], **found}
        else:
            break
    return arguments, found


def _positive(name: str, text: str | None, otherwise: float | None) -> float | None:
    """The number that the text of an option gives. Raises UsageError unless it is positive."""
    if text is None:
        return otherwise
    try:
        number = int(text) if name == "--trials" else float(text)
    except ValueError:
        number = 0
    if not 0 < number < math.inf:
        raise UsageError(f"{name}: expected a positive number, found {text!r}")
    return number
