"""The live view of a run: what a terminal shows while it goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evotune.cli.standing import Standing
from evotune.report import wording
from evotune.report.escape import printable
from evotune.space.suggest import shorten

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*#@"
_ELITES = 5
_WIDEST = 100  # wider lines are hard to take in at a glance


def panel(standing: Standing, width: int, encoding: str = "utf-8") -> Group:
    """No line is wider than `width`; the same number of lines as long as nothing new is known."""
    from rich.console import Group
    from rich.text import Text

    width = max(20, min(width - 1, _WIDEST))
    rows = [
        Text(shorten(printable(standing.heading()), width), style="bold"),
        Text(f"{standing.phase} ({wording.duration_text(standing.elapsed_s)})"),
        *_bar(standing, width, encoding),
        *_labelled("trials", standing.pace(), width),
        *_labelled("outcomes", standing.counts(), width),
        *_labelled("best", standing.best(), width, style="bold green"),
        *_labelled("", standing.best_configuration(), width),
        *_labelled("confirmed", standing.confirmations(), width, style="bold green"),
        *_curve(standing, width, encoding),
        *_elites(standing, width),
        *_labelled("device", standing.device_state(), width),
        *_labelled("time in", standing.stages(), width),
    ]
    return Group(*rows)


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """`values` in at most `width` characters, the last of each stretch; a space where NaN."""
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
    """The text wrapped behind its label, which is dim; nothing for no text."""
    import textwrap

    from rich.text import Text

    indent = 10
    lines = textwrap.wrap(printable(text), width - indent, break_on_hyphens=False)
    return [
        Text.assemble((f"{label if at == 0 else '':{indent}}", "dim"), (line, style))
        for at, line in enumerate(lines)
    ]


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
