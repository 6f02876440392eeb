"""Text tables, which rich renders on a terminal, into a pipe or into a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evotune.cli.terminal import Terminal, write_output

if TYPE_CHECKING:
    from rich.table import Table

    from evotune.report.data import RunData
    from evotune.report.screen import Line


_STYLES = {"plain": "", "title": "bold", "quiet": "dim", "good": "green", "bad": "red"}


def text_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: Sequence[bool] = (),
    title: str | None = None,
) -> Table:
    """A table of the rows. Cells are taken literally: no markup.

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
