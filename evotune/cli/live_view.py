"""The live panel: the facts of a run, laid out for a terminal while the run is going on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evotune.cli.standing import Standing
from evotune.report import wording
from evotune.util.words import printable, shorten

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*#@"
_ELITES = 5
_FIRST_TO_GO = ("elites", "configuration", "stages", "device", "curve")
_ROW_BY_ROW = ("elites",)  # parts whose rows stand alone: cut between two rows, no ellipsis needed


def panel(
    standing: Standing, width: int, encoding: str = "utf-8", height: int | None = None
) -> Group:
    """The panel's lines: each narrower than `width`, and at most `height` of them.

    A line that scrolls out of the terminal cannot be drawn again, hence the limit. The number of
    lines stays the same until a new fact is known.
    """
    from rich.console import Group
    from rich.text import Text

    width = max(20, width - 1)
    phase = f"{standing.phase} ({wording.duration_text(standing.elapsed_s)})"
    parts = {
        "heading": [Text(shorten(printable(standing.heading()), width), style="bold")],
        "phase": [Text(line) for line in _wrapped(phase, width)],
        "bar": _bar(standing, width, encoding),
        "pace": _labelled("trials", standing.pace(), width),
        "counts": _labelled("outcomes", standing.counts(), width),
        "best": _labelled("best", standing.best(), width, _style(wins=standing.best_wins)),
        "configuration": _labelled("", standing.best_configuration(), width),
        "confirmed": _labelled(
            "confirmed", standing.confirmations(), width, _style(wins=standing.confirmed_wins)
        ),
        "curve": _curve(standing, width, encoding),
        "elites": _elites(standing, width),
        "device": _labelled("device", standing.device_state(), width),
        "stages": _labelled("time in", standing.stages(), width),
    }
    if height is not None:
        _cut(parts, height)
    return Group(*(row for rows in parts.values() for row in rows))


def _cut(parts: dict[str, list[Text]], height: int) -> None:
    """Removes rows until at most `height` are left.

    The parts of `_FIRST_TO_GO` lose their last rows first, one part after the other. A text that is
    cut in the middle ends with an ellipsis.
    """
    for name in (*_FIRST_TO_GO, *reversed(parts)):
        rows = parts[name]
        excess = sum(map(len, parts.values())) - height
        if excess <= 0:
            return
        if excess < len(rows) and name not in _ROW_BY_ROW:
            last = rows[len(rows) - excess - 1]
            last.plain = f"{last.plain[:-1]}…"
        del rows[max(0, len(rows) - excess) :]


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """Draws `values` as at most `width` characters. Each stands for a stretch of values and shows
    the last of them; NaN is a space."""
    count = min(width, len(values))
    picked = [values[(at + 1) * len(values) // count - 1] for at in range(count)]
    known = [value for value in picked if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) / (len(blocks) - 1) or 1.0
    return "".join(
        blocks[round((value - low) / step)] if math.isfinite(value) else " " for value in picked
    )


def _labelled(label: str, text: str, width: int, style: str = "") -> list[Text]:
    """The text, wrapped, behind its dim label. No lines when the text is empty."""
    from rich.text import Text

    indent = 10
    lines = _wrapped(text, width - indent)
    return [
        Text.assemble((f"{label if at == 0 else '':{indent}}", "dim"), (line, style))
        for at, line in enumerate(lines)
    ]


def _style(*, wins: bool) -> str:
    """Green is for a speedup that is surely above 1."""
    return "bold green" if wins else "bold"


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(printable(text), width, break_on_hyphens=False)


def _bar(standing: Standing, width: int, encoding: str) -> list[Text]:
    from rich.text import Text

    if standing.info is None or standing.progress is None or not standing.info.trials:
        return []
    full, empty = ("━", "─") if _can_show("━─", encoding) else ("#", ".")
    done = min(width, round(width * standing.progress.told / standing.info.trials))
    return [Text.assemble((full * done, "green"), (empty * (width - done), "dim"))]


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _curve(standing: Standing, width: int, encoding: str) -> list[Text]:
    blocks = _BLOCKS if _can_show(_BLOCKS, encoding) else _ASCII_BLOCKS
    known = [value for value in standing.curve if math.isfinite(value)]
    if len(standing.curve) < 2 or not known:
        return []
    first, last = standing.figure(known[0]), standing.figure(known[-1])
    room = width - 10 - len(first) - len(last) - 2
    line = sparkline(standing.curve, max(1, room), blocks)
    return _labelled("so far", f"{first} {line.replace(' ', blocks[0])} {last}", width, "cyan")


def _elites(standing: Standing, width: int) -> list[Text]:
    rows = []
    for at, (figure, changes) in enumerate(standing.elites(_ELITES)):
        text = f"{figure}: {changes or 'the same'}" if at else f"{figure}: the best"
        rows += _labelled("elites" if at == 0 else "", shorten(printable(text), width - 10), width)
    return rows
