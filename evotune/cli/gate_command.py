"""`gate`: judges one kernel. Its exit code is the verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import evotune
from evotune.cli.options import POSITIVE, Command, device_option, trust_option
from evotune.cli.terminal import Terminal, pass_terminal, write_output
from evotune.errors import UsageError
from evotune.formats import FORMATS

if TYPE_CHECKING:
    from evotune.formats import Given
    from evotune.trial import Value

_EXIT_CODES = {"passed": 0, "refused": 1, "undecided": 6}
_AUTO = "auto"


class _Shape(click.ParamType["Mapping[str, Value]"]):
    name = "NAME=VALUE,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        shape: dict[str, Value] = {}
        for part in value.split(","):
            name, equals, text = (each.strip() for each in part.partition("="))
            if not (equals and name.isidentifier() and text) or name in shape:
                self.fail(f"expected NAME=VALUE,…, as in rows=256,columns=1000: {value!r}")
            shape[name] = _value(text)
        return shape


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


@click.command(
    cls=Command, example="evotune gate softmax.cpp --task problem.py --shape rows=256,columns=1000"
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--task",
    metavar="TASK",
    type=click.Path(path_type=Path),
    help="What the kernel must compute: problem.py, problem.py:CLASS, a space file whose kernel "
    "FILE replaces, or a task of the format.",
)
@click.option("--entry", metavar="NAME", help="The function in FILE, if it has several.")
@click.option(
    "--shape",
    "shapes",
    type=_Shape(),
    multiple=True,
    help="Sizes to judge and time it for, as rows=256,columns=1000; may be given several times. "
    "Defaults to those of the task.",
)
@click.option("--dtype", metavar="DTYPE", help="The tensors' type; defaults to the problem's.")
@click.option(
    "--format",
    "style",
    type=click.Choice([_AUTO, *FORMATS]),
    default=_AUTO,
    show_default=True,
    help="The format of FILE and TASK.",
)
@click.option(
    "--seconds",
    type=POSITIVE,
    help="The time limit. If it ends before the verdict, the exit code is 6.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the verdict to a JSON file.")
@click.option("--result", metavar="FILE", help="Write the result in the format of the task.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@device_option
@trust_option
@pass_terminal
def gate(
    terminal: Terminal,
    *,
    file: Path,
    task: Path | None,
    entry: str | None,
    shapes: tuple[Mapping[str, Value], ...],
    dtype: str | None,
    style: str,
    seconds: float | None,
    output: str | None,
    result: str | None,
    as_json: bool,
    device: str,
) -> int:
    """Judge the kernel in FILE.

    It is compiled, checked as a champion of a run is checked, and timed in alternation with the
    baseline, in processes of its own. The exit code is the verdict: 0 passed, 1 refused, 6
    undecided, because the machine is too noisy or the time limit ended. The reason is one line. 2
    means a wrong command, space or problem, 3 that this machine lacks something. Nothing but the
    named files is written.

    FILE is a C++ or Python file. If its function takes `configuration` and `case`, it makes the
    function to be judged; else it takes the problem's inputs by name. FILE may also be a space, of
    which the default is judged.
    """
    from evotune.util.files import scratch_folder

    with scratch_folder() as folder:
        own = {"entry": entry, "shapes": shapes, "dtype": dtype}
        given = _loaded(file, task, style, folder, own)
        candidate, keywords = (str(file), {}) if given is None else (given.kernel, given.keywords)
        found = evotune.gate(
            candidate,
            seconds=seconds,
            device=device,
            on_note=terminal.note,
            **keywords,
        )
        terminal.verdict = _EXIT_CODES[found.verdict]
        if result is not None:
            from evotune import formats

            if given is None:
                raise UsageError("--result: a space has no result of its own: use -o FILE")
            write_output(formats.result(given, found), result)
    record = found.to_json()
    if output is not None:
        write_output(_json(record), output)
    if as_json:
        write_output(_json(record), "-")
    else:
        click.echo(str(found))
    return terminal.verdict


def _loaded(
    file: Path, task: Path | None, style: str, folder: Path, own: Mapping[str, Any]
) -> Given | None:
    """What the gate needs; None if the file is a space."""
    from evotune import formats
    from evotune.formats import own as own_format

    if task is None and file.suffix in own_format.SPACES:
        return None
    if not file.exists():
        raise UsageError(f"{file}: no such file")
    if style == _AUTO:
        style = formats.detect(file, task)
    if style == formats.EVOTUNE:
        return own_format.load(file, task, **own)
    if named := [name for name, value in own.items() if value]:
        options = ", ".join(f"--{name.removesuffix('s')}" for name in named)
        raise UsageError(f"{options}: not with the format {style}, whose task says it")
    return formats.load(file, task, style, folder)


def _json(record: Mapping[str, Any]) -> str:
    from evotune.report.formats import to_json

    return to_json(record)
