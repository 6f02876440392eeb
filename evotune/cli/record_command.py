"""`record`: runs a script and lists the calls of attention that it makes."""

from __future__ import annotations

from pathlib import Path

import click

from evotune.cli.options import Command, spaces_device_option
from evotune.cli.terminal import Terminal, pass_terminal, write_output
from evotune.errors import UsageError

_OUTPUT = ("-o", "--output")


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
    them for `run SPACE --cases`. Everything behind SCRIPT is the script's, but for `-o FILE` as the
    last two words when it does not stand before SCRIPT. The exit code is the script's. Ctrl-C
    writes what was recorded so far. Child processes are not recorded.
    """
    if output is None and len(arguments) >= 2 and arguments[-2] in _OUTPUT:
        arguments, output = arguments[:-2], arguments[-1]
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
