"""The output of the commands: colours, amount, width, stream, and tables.

Data goes to stdout, everything else to stderr. Text from elsewhere (a file, a compiler, a store)
passes through `util.words.printable` before it is printed. rich renders tables on a terminal, into
a pipe or into a file.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from evotune.report.data import RunData
    from evotune.report.screen import Line


_PIPE_COLUMNS = 100  # the width of the layout if there is no screen: in a pipe or a file
_UNLIMITED_COLUMNS = 100_000  # rich shrinks tables to 80 columns when it sees no terminal
_LEAST_SIZES = {"COLUMNS": 20, "LINES": 2}
_ASCII = {"─": "-", "µ": "u"}


@dataclass(slots=True)
class Terminal:
    """The settings of the output, from --color, -q and -v.

    - crash_folder: the folder for the traceback of a bug
    - verdict: the exit code when the reader of stdout (`head`, `less`) stops before the end
    """

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
        """The width to lay `output` out for: COLUMNS, else the screen's width, else 100."""
        wanted = os.environ.get("COLUMNS", "")
        if wanted.isdecimal() and int(wanted):
            return int(wanted)
        if output == "-" and sys.stdout.isatty():
            return os.get_terminal_size(sys.stdout.fileno()).columns or _PIPE_COLUMNS
        return _PIPE_COLUMNS

    def console(self, file: IO[str]) -> Console:
        """A rich console that prints text literally: without markup and automatic colours."""
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
        """Writes a line to stderr, or nothing with --quiet."""
        if not self.quiet:
            say(text)


def say(text: str) -> None:
    """Writes a line to stderr, even with --quiet."""
    from evotune.util.words import printable

    # Not `err=True`: click would then write past an object that replaces stderr, as the live
    # panel does.
    click.echo(printable(text), file=sys.stderr)


class _Forgiving(io.FileIO):
    """The raw stderr. Output that it does not accept is lost, and the command continues."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


def keep_going_without_stderr() -> None:
    """Makes failed writes to stderr (full disk, closed terminal) harmless, so that they do not end
    a command whose data on stdout are still needed."""
    stderr = sys.__stderr__
    if stderr is not None and sys.stderr is stderr:
        raw = _Forgiving(stderr.fileno(), "w", closefd=False)
        buffered = io.BufferedWriter(raw)
        sys.stderr = io.TextIOWrapper(buffered, stderr.encoding, line_buffering=True)


def forget_useless_sizes() -> None:
    """Removes a screen's size from the environment if no table fits it: COLUMNS=0 means that the
    size is unknown, and rich would print nothing."""
    for name, least in _LEAST_SIZES.items():
        size = os.environ.get(name, "")
        if not (size.isascii() and size.isdecimal() and int(size) >= least):
            os.environ.pop(name, None)


def write_output(text: str, output: str) -> None:
    """Writes data to stdout (`-`) or to a file. Raises UsageError if the file cannot be written."""
    if output == "-":
        click.echo(_legible(text, sys.stdout.encoding or "utf-8"), nl=False)
        return
    with _written(output) as write:
        write(text.encode())


def write_pieces(pieces: Iterable[bytes], output: str, *, binary: bool) -> None:
    """Writes data piece by piece to stdout (`-`) or to a file, which appears once everything is
    written. Raises UsageError if the file cannot be written, or for `binary` data if stdout is a
    terminal."""
    if output != "-":
        with _written(output) as write:
            for piece in pieces:
                write(piece)
        return
    if binary and sys.stdout.isatty():
        from evotune.errors import UsageError

        raise UsageError("this format is binary: name a file with -o FILE")
    for piece in pieces:
        if binary:
            sys.stdout.buffer.write(piece)
        else:
            write_output(piece.decode(), output)


@contextlib.contextmanager
def opened_output(output: str, *, whole: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields a function that writes data piece by piece to the same places as `write_output`, for
    data that is never in memory as a whole. With `whole` the pieces are useful only together: the
    file appears at the end of the block, and not after an exception. Otherwise the first piece
    replaces the file's earlier content."""
    if output == "-":
        yield lambda text: write_output(text, output)
        return
    with _written(output, whole=whole) as write:

        def write_text(text: str) -> None:
            write(text.encode())

        yield write_text


@contextlib.contextmanager
def _written(output: str, *, whole: bool = True) -> Iterator[Callable[[bytes], object]]:
    """A function that writes to the file. Ctrl-C within the block leaves no part of a whole one."""
    from evotune.errors import UsageError
    from evotune.util.files import growing_file, whole_file
    from evotune.util.processes import interruptible

    path = Path(output)
    try:
        with interruptible():
            if whole:
                with whole_file(path) as file:
                    yield file.write
            else:
                with growing_file(path) as write:
                    yield write
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _legible(text: str, encoding: str) -> str:
    """Replaces rules (─) and micro signs by ASCII if the encoding lacks them. Any other character
    that it lacks is printed as its escape (`main`)."""
    for char, ascii_char in _ASCII.items():
        if char in text:
            try:
                char.encode(encoding)
            except UnicodeEncodeError:
                text = text.replace(char, ascii_char)
    return text


pass_terminal = click.make_pass_decorator(Terminal, ensure=True)


_STYLES = {"plain": "", "title": "bold", "quiet": "dim", "good": "green", "bad": "red"}


def text_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: Sequence[bool] = (),
    title: str | None = None,
) -> Table:
    """A table of the rows. Cells are printed literally, without markup.

    Numeric columns align right and are never wrapped. A column that is empty in every row is left
    out.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from evotune.util.words import printable

    table = Table(
        title=Text(printable(title), style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    cells = list(rows)
    shown = [at for at in range(len(columns)) if not cells or any(row[at] for row in cells)]
    for at in shown:
        right = at < len(numeric) and numeric[at]
        table.add_column(
            Text(printable(columns[at])),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right,
        )
    for row in cells:
        table.add_row(*(Text(printable(row[at])) for at in shown))
    return table


def print_leaderboard(terminal: Terminal, data: RunData, count: int, output: str = "-") -> None:
    """Prints the leaderboard, as wide as the screen: for `top` and for the end of a run."""
    from evotune.report.screen import leaderboard_lines, plain

    lines = leaderboard_lines(data, count, terminal.columns(output))
    if output == "-" and terminal.colored(sys.stdout):
        _print_styled(terminal, lines)
    else:
        write_output(plain(lines), output)


def _print_styled(terminal: Terminal, lines: Sequence[Line]) -> None:
    from rich.text import Text

    console = terminal.stdout()
    for line in lines:
        spans = ((span.text, _STYLES[span.role]) for span in line)
        console.print(Text.assemble(*spans), soft_wrap=True)


def print_tables(terminal: Terminal, parts: Iterable[Table | str], output: str = "-") -> None:
    """Prints tables and lines of text in their order. A file gets no colours; in a file and in a
    pipe no line ends with spaces."""
    from rich.text import Text

    from evotune.util.words import printable

    direct = output == "-" and (sys.stdout.isatty() or terminal.color == "always")
    buffer = io.StringIO()
    console = terminal.stdout() if direct else Terminal(color="never").console(buffer)
    for part in parts:
        console.print(Text(printable(part)) if isinstance(part, str) else part)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    if not direct:
        write_output("".join(f"{line}\n" for line in lines), output)
