"""How the user wants to be talked to: colour, how much of it, and on which stream.

Data goes to stdout, everything else to stderr. Text that comes from elsewhere passes through
`report.escape.printable` before it is printed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_COLUMNS = 100  # what has no screen is laid out for this one
_UNLIMITED_COLUMNS = 100_000  # rich shrinks tables to 80 columns when it sees no terminal
_ASCII = {"─": "-", "µ": "u"}


@dataclass(slots=True)
class Terminal:
    """Set by --color, -q and -v; `crash_folder` is where the traceback of a bug is kept. `verdict`
    is the exit code of a command whose output nobody reads to its end (`head`, `less`)."""

    color: str = "auto"
    quiet: bool = False
    verbose: bool = False
    crash_folder: Path | None = None
    verdict: int = 0

    def stdout(self) -> Console:
        return self.console(sys.stdout)

    def stderr(self) -> Console:
        return self.console(sys.stderr)

    def colored(self, file: IO[str]) -> bool:
        if self.color == "auto":
            return file.isatty() and not os.environ.get("NO_COLOR")
        return self.color == "always"

    def columns(self, output: str = "-") -> int:
        """The width to lay `output` out for: COLUMNS, the screen's, or that of a usual one."""
        wanted = os.environ.get("COLUMNS", "")
        if wanted.isdecimal() and int(wanted):
            return int(wanted)
        if output == "-" and sys.stdout.isatty():
            return os.get_terminal_size(sys.stdout.fileno()).columns or _PIPE_COLUMNS
        return _PIPE_COLUMNS

    def console(self, file: IO[str]) -> Console:
        """A rich console that takes text literally: no markup, no guessing of colours."""
        from rich.console import Console

        interactive = file.isatty()
        colored = self.colored(file)
        return Console(
            file=file,
            color_system=("auto" if interactive else "standard") if colored else None,
            force_terminal=True if colored else None,
            no_color=not colored,
            width=None if interactive or os.environ.get("COLUMNS") else _UNLIMITED_COLUMNS,
            markup=False,
            highlight=False,
            emoji=False,
        )

    def note(self, text: str) -> None:
        """A line for people, on stderr; none with --quiet."""
        if not self.quiet:
            say(text)


def say(text: str) -> None:
    """A line on stderr, whatever the options say."""
    from evotune.report.escape import printable

    # Not `err=True`: click then writes past whoever stands in for stderr, as the live view does.
    click.echo(printable(text), file=sys.stderr)


def write_output(text: str, output: str) -> None:
    """Data to stdout (`-`) or to a file; UsageError when the file cannot be written."""
    from evotune.errors import UsageError

    if output == "-":
        click.echo(_legible(text, sys.stdout.encoding or "utf-8"), nl=False)
        return
    try:
        with Path(output).open("w", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error


def write_bytes(content: bytes, output: str) -> None:
    """Binary data, as `write_output`; UsageError rather than spoiling a terminal."""
    from evotune.errors import UsageError

    if output == "-":
        if sys.stdout.isatty():
            raise UsageError("this format is binary: name a file with -o FILE")
        sys.stdout.buffer.write(content)
        return
    try:
        Path(output).write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error


@contextlib.contextmanager
def opened_output(output: str) -> Iterator[Callable[[str], None]]:
    """`write_output` piece by piece: for data that is not held as a whole."""
    if output == "-":
        yield lambda text: write_output(text, output)
        return
    from evotune.errors import UsageError

    try:
        with Path(output).open("w", encoding="utf-8", newline="") as file:

            def write(text: str) -> None:
                file.write(text)

            yield write
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error


def _legible(text: str, encoding: str) -> str:
    """Rules and micro signs as ASCII where the terminal lacks them; others get their escape."""
    for char, ascii_char in _ASCII.items():
        if char in text:
            try:
                char.encode(encoding)
            except UnicodeEncodeError:
                text = text.replace(char, ascii_char)
    return text


pass_terminal = click.make_pass_decorator(Terminal, ensure=True)
